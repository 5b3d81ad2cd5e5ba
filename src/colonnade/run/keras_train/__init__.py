"""`cn.fit`, `cn.evaluate`, `cn.predict`: compiled Keras models on all devices, in Keras's own loop.

In comes a model with its `train_step`; out goes the step that Keras calls for every batch.
"""
