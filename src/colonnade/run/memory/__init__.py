"""Memory: how much a training takes on each device, and whether it fits, before it runs.

In come traces and an optimizer; out go bytes per device, measured by a dry run in a process of its own.
"""
