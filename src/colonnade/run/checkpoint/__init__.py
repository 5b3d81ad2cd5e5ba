"""A training on disk: written so that a kill at any moment leaves a step to go on from.

In come the variables of an engine and the place in the data; out go directories of saved steps, and back.
"""
