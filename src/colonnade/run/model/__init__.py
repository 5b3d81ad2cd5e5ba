"""A compiled Keras model seen as a function of a batch: its training step, and its metrics.

In comes a model; out go loss, predictions, and metrics of the whole batch.
"""
