"""Callbacks of Keras while `cn.fit` trains: what they hear and see, and what of them is saved.

In come the callbacks of the user; out go those to put around them, on one machine or on several, the states
that a checkpoint keeps, and the batches that a step may look ahead to.
"""
