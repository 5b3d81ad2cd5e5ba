"""Every test process has eight cards made of host memory. `make cards` runs these tests."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("FAKE_CARDS", "8")

import fake  # noqa: F401  before TensorFlow starts

import colonnade as cn

cn.setup()
