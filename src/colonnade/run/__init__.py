"""TensorFlow at work, in rooms: an import points from a later room to an earlier one only.

batch, move, trace, model, parallel, variables, data, step, memory, engine, sync, asynchronous, pipeline,
checkpoint, width, train, selftest: each says in its `__init__` what comes in and what goes out.
"""
