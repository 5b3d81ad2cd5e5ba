"""Schedules, the order of sums, costs, the simulator and the planner: plain functions; no TensorFlow."""
