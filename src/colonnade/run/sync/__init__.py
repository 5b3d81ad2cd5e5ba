"""Ways of training in which replicas meet: every step, or every so many steps.

In come settings and a batch; out goes the graph of a step on all devices.
"""
