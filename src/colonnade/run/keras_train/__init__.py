"""`cn.fit`, `cn.evaluate`, `cn.predict`: compiled Keras models on all devices, in Keras's own loop.

In comes a model with its data; `keras_steps` trains a batch, and what is saved of a fit goes out to disk.
"""
