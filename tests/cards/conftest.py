"""Every test process has eight cards made of host memory. `make cards` runs these tests."""

import os
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("FAKE_CARDS", "8")
# What a self-test of these cards finds is not for others.
os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp()

import fake  # noqa: F401  before TensorFlow starts

import colonnade as cn
from colonnade.hardware.probes import collective
from colonnade.run.train import fitting

cn.setup()
# There is no library of cards here: TensorFlow's own ring takes its place.
collective.HINT = "ring"
# A call into the graph sends some messages of its own: a busy machine must not make more calls of the steps.
fitting.SECONDS_PER_CALL = 3600.0
