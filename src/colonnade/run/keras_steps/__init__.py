"""The step of a compiled Keras model on all devices: Keras's own, one of the model's, or whole batches.

In comes a compiled model with its devices; out goes the function that trains it on one batch.
"""
