"""The pieces of one step: loss and gradient, the sum of gradients, the optimizer's update, evaluation.

In come a loss function and an optimizer; out go functions over tensors and handles that engines call.
"""
