"""Told beforehand: measures what a step costs, and asks the planner for a layout.

In come a loss or model and devices; out go a `Workload` and a `Plan`.
"""
