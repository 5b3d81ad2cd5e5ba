"""Gives Python processes that tests start the cards of this folder: with `children/` in PYTHONPATH.

Their collectives are TensorFlow's own ring, which says as NCCL does that it took part.
"""

import atexit
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import fake  # noqa: F401  before TensorFlow starts

from colonnade.hardware.probes import collective

collective.HINT = "ring"
if os.environ.get("NCCL_DEBUG"):
    atexit.register(print, "host:1:2 [0] NCCL INFO NCCL version 0.0.0+cuda12.5")
