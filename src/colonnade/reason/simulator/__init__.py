"""A training step on paper: what every device and every link does, when, and how much memory it takes.

In come a topology, a workload and a plan; out goes a simulation with its timeline.
"""
