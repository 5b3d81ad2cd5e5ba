"""What machines that train together do inside a graph: sums over all of them, rows of all of them.

In come tensors of this machine; out go those of all machines, the same on each.
"""
