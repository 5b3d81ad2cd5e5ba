"""Pipelines: layers in stages on several devices, and micro-batches that go through them by a schedule.

In come layers and devices; out go a `Pipeline` to call, and the engine that trains with it.
"""
