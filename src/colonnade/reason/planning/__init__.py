"""Chooses a layout: lists what is possible, drops what does not fit, simulates the rest, and says why.

In come a topology and a workload; out goes a plan.
"""
