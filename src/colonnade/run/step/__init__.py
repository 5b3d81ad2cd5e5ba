"""The pieces of one step: the loss with its gradient, sums of gradients, the optimizer's update, evaluation.

In come a loss function and an optimizer; out go functions over tensors and handles that engines call.
"""
