"""Synchronous or asynchronous? The experiment that answers an old article's question, for anyone to repeat.

In come a design and small images; out go outcomes of many trainings, and findings with their intervals.
"""
