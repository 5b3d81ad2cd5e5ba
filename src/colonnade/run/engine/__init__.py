"""What every mode of training has in common: its interface, its traces, the guard against NaN, the loop.

In come `Settings`; out go steps as graphs, many to a call, and what they tell: `Outcome`, `Chunk`, `History`.
"""
