"""Batches: the arguments of a user's function, cut into a slice for each device.

In come tensors and nests of them; out go `Arguments`, and the sizes of slices. Nothing here runs a function.
"""
