"""Any function on every device: `cn.parallel`, `cn.make_parallel`, and `cn.verify` against one device.

In come a function and its arguments; out go its results, joined, or a report of where they differ.
"""
