"""Plain data about machines, work and plans; no TensorFlow."""
