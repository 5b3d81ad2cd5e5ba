"""TensorFlow: run one-device functions on many devices."""
