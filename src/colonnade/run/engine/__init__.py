"""What all ways of training have in common: what they promise, their traces, the guard, the loop over steps.

In come `Settings`; out go steps as graphs, many to a call, and what they tell: `Outcome`, `Chunk`, `History`.
"""
