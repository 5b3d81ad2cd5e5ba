"""Where variables live: shared, mirrored, partitioned, with the stages of a pipeline, or in parts.

In come the variables that a trace captured; out go the handles with which each replica calls it, and what a
checkpoint keeps of them.
"""
