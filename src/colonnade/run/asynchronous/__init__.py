"""Asynchronous training: each device takes slices from a queue, and its gradient is applied at once.

In come batches; out go updates, one per slice, and how old each gradient was.
"""
