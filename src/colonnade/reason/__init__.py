"""Pipeline schedules, the split of layers, the order of sums: plain functions; no TensorFlow."""
