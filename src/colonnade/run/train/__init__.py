"""What users call to train, `cn.Trainer` and `cn.fit`: log lines, signals, checks of arguments.

In come a loss or a Keras model, and data; out goes a history.
"""
