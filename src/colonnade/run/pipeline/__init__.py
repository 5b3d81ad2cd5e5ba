"""Layers in stages on several devices, and the schedule by which micro-batches go through them.

In come layers and devices; out go a `Pipeline` to call, and the engine that trains with it.
"""
