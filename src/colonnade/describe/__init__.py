"""Plain data about machines and work; no TensorFlow."""
