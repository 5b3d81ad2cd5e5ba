"""What every mode of training has in common; `protocols` is its interface.

Traces, the guard against NaN, the loop in the graph. In come `Settings`; out go steps as graphs, many to a
call, and what they tell: `Outcome`, `Chunk`, `History`.
"""
