"""Cuts a trace where replicas exchange sums, and where the stages of a pipeline meet.

In comes a `Traced`; out go functions for its pieces, with what passes from one to the next.
"""
