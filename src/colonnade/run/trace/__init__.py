"""A user's function as a graph: traced once, called on any device.

In come a Python function and the spec of a slice; out go a `Traced` and the variables that it captured.
"""
