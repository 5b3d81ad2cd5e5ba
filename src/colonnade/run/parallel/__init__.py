"""Any function on every device: `cn.parallel`, `cn.make_parallel`, and `cn.verify`, which compares with one.

In come a function and its arguments; out go its results, joined, or a report of where they differ.
"""
