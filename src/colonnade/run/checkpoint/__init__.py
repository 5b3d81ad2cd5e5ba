"""Checkpoints: a training is written to disk so that after a kill at any moment it can go on.

In come the variables of an engine and the place in the data; out go directories of saved steps, and back.
"""
