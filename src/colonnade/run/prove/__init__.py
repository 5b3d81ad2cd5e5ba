"""Holds the first batch against one device before anything is trained.

In come a step and its first batch; out goes a verdict: equal to rounding, or what differs and why.
"""
