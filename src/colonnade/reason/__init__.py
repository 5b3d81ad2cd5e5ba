"""Schedules and placement: plain functions of plain data; no TensorFlow."""
