"""Starts TensorFlow, the build for CUDA, with cards made of host memory, and a driver that lists them.

To be imported before TensorFlow starts its devices. `FAKE_CARDS` says how many cards there are, and
`FAKE_CARDS_LIBRARY` where the library is that `make cards` built of fakecards.cc.
"""

import ctypes
import os
from dataclasses import replace

import tensorflow as tf

from colonnade.describe.topology import Topology
from colonnade.hardware import cards
from colonnade.hardware.fake import FakeNvml

NUMBER = int(os.environ["FAKE_CARDS"])
# Copies by source and target: how many, and their bytes.
Copies = dict[tuple[str, str], tuple[int, int]]

_library = ctypes.CDLL(os.environ["FAKE_CARDS_LIBRARY"], mode=ctypes.RTLD_GLOBAL)
_library.fake_cards_counts.restype = ctypes.c_char_p
assert _library.fake_cards_redirected(), "copies between cards are not counted: is this TensorFlow 2.21?"
# These two passes rewrite ops into forms that only a real card can compute.
tf.config.optimizer.set_experimental_options({"layout_optimizer": False, "remapping": False})

_detect = cards.detect


# A card has 18 lines at most: two to each of seven others.
_uniform = Topology.uniform(NUMBER, link="NV2")
TOPOLOGY = replace(_uniform, devices=tuple(replace(d, name="A card of memory") for d in _uniform.devices))


def _listed(nvml=None, owner=cards.owner, virtual=1):
    return _detect(FakeNvml(TOPOLOGY), owner, virtual)


cards.detect = _listed


def copies(*, computed: bool = False) -> Copies:
    """What was copied since the last call.

    Where an op does not run, as in a branch that is not taken, an empty message says so. Those at the end of
    a call may come too late for it, so their number varies. With `computed` none of them counts.
    """
    rows = (line.split() for line in _library.fake_cards_counts(1).decode().splitlines())
    return {
        (source, target): (int(number) - int(dead) * computed, int(size))
        for source, target, number, size, dead in rows
    }
