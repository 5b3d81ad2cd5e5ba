"""Batches as values: the arguments of a user's function, cut into slices for the devices.

In come tensors and nests of them; out go `Arguments`, and the sizes of slices. Nothing here runs a function.
"""
