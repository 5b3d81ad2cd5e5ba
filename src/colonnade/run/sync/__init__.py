"""Modes in which replicas meet: at every step (`cn.Synchronous`) or every so many (`cn.LocalSGD`).

In come settings and a batch; out goes the graph of a step on all devices.
"""
