"""What users call to train: `cn.Trainer` and `cn.fit`, with progress, signals and checks of arguments.

In come a loss or a Keras model, and data; out goes a history.
"""
