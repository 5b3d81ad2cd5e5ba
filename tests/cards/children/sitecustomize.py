"""Gives Python processes that tests start the cards of this folder: with `children/` in PYTHONPATH.

TensorFlow's own ring takes the place of NCCL in them too, and says as NCCL does that it took part.
"""

import atexit
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import fake  # noqa: F401  before TensorFlow starts
import tensorflow as tf

_reduced = tf.raw_ops.CollectiveReduceV2
# What a process runs as its program is imported anew, so a name of Colonnade's could not be patched.
tf.raw_ops.CollectiveReduceV2 = lambda **options: _reduced(**{**options, "communication_hint": "ring"})
if os.environ.get("NCCL_DEBUG"):
    atexit.register(print, "host:1:2 [0] NCCL INFO NCCL version 0.0.0+cuda12.5")
