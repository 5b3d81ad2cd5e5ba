"""What users call to train a loss, `cn.Trainer`: the course of a fit, signals, checks of arguments.

In come a loss and data; out goes a history.
"""
