"""Asks TensorFlow, in a process of its own, for its version and the cards that it can use.

TensorFlow says why it cannot use a card on its error output, while it is imported; only another
process can catch that, and this one stays without TensorFlow.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace

from colonnade.hardware import onednn
from colonnade.hardware.probes.watchdog import ask

PROGRAM = """
import json
import tensorflow as tf
from colonnade.hardware.onednn import is_on
info = tf.sysconfig.get_build_info()
cuda, cards = str(info.get("cuda_version", "")), len(tf.config.list_physical_devices("GPU"))
built_for = list(info.get("cuda_compute_capabilities", ()))
print(json.dumps([tf.__version__, tf.test.is_built_with_cuda(), cuda, cards, is_on(), built_for]))
"""

# Of all that TensorFlow logs at its start, what bears on cards.
_TELLING = re.compile(r"dlopen|dynamic library|cuInit|CUDA_ERROR|cuda drivers|driver version", re.IGNORECASE)


PATIENCE = 300  # seconds


@dataclass(frozen=True)
class Copy:
    """A copy from one card to another, by their indices: whether it arrived, and its bytes per second."""

    source: int
    target: int
    arrived: bool
    bandwidth: float


@dataclass(frozen=True)
class TensorFlow:
    """What TensorFlow says of itself; `version` is empty where it is not installed or does not start."""

    version: str = ""
    built_with_cuda: bool = False
    cuda: str = ""  # the version it was built for
    cards: int = 0  # that it can use
    onednn: bool = False  # whether it uses oneDNN by itself, or because the user said so
    log: tuple[str, ...] = ()  # its own words about what is missing
    copies: tuple[Copy, ...] = ()  # between every two of its cards
    unmeasured: str = ""  # why there are none
    # Architectures: sm_80 as machine code, compute_90 as that and as code to be compiled for later ones.
    built_for: tuple[str, ...] = ()


def probe(environment: Mapping[str, str] = os.environ) -> TensorFlow:
    """Start TensorFlow in another process and ask it; with several cards, let it copy between them."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            env={**onednn.as_found(environment), "TF_CPP_MIN_LOG_LEVEL": "0"},
        )
    except subprocess.TimeoutExpired:  # a driver that hangs
        return TensorFlow(log=(f"no answer within {PATIENCE} s",))
    return measured(read(done.returncode, done.stdout, done.stderr))


def measured(tensorflow: TensorFlow) -> TensorFlow:
    """With copies between the cards; under a watchdog, because such a copy can hang."""
    if tensorflow.cards < 2:
        return replace(tensorflow, unmeasured="TensorFlow can use fewer than two cards here")
    answer = ask("colonnade.hardware.probes.copies", seconds=PATIENCE)
    if answer.trouble:
        return replace(tensorflow, unmeasured=": ".join(filter(None, (answer.trouble, answer.words))))
    return replace(tensorflow, copies=tuple(Copy(**each) for each in answer.said))


def read(code: int, output: str, errors: str) -> TensorFlow:
    """What the other process said.

    >>> read(0, '["2.21.0", true, "12.5.1", 0, true, []]', "E0 x.cc:1] failed call to cuInit: no device").log
    ('failed call to cuInit: no device',)
    """
    lines = errors.strip().splitlines()
    if code != 0:
        return TensorFlow(log=tuple(lines[-1:]))
    telling = [line.partition("] ")[2] or line for line in lines if _TELLING.search(line)]
    version, with_cuda, cuda, cards, faster, built_for = json.loads(output.strip().splitlines()[-1])
    words = tuple(dict.fromkeys(telling))
    return TensorFlow(version, with_cuda, cuda, cards, faster, words, built_for=tuple(built_for))
