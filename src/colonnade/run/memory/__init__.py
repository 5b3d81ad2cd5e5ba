"""How much memory a training takes on each device, before it runs.

In come traces and an optimizer; out go bytes per device, measured by a dry run in a process of its own.
"""
