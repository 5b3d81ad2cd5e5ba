"""The data of a fit: datasets, arrays and generators as batches, and the place reached in them.

In comes what the user passed to `fit`; out go batches one by one, and a state from which to go on.
"""
