"""Asynchronous training: devices take slices from a queue, and each gradient is applied when it is ready.

In come batches; out go updates, one per slice, and how old each gradient was.
"""
