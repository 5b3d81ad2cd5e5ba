"""oneDNN, TensorFlow's faster kernels for CPUs: switched on in time, or a word on what is lost.

TensorFlow looks at an environment variable when it is imported; set later it has no effect, and nothing
tells. Without the variable, TensorFlow uses oneDNN only on x86 processors with instructions for neural
networks (AVX512-VNNI, AMX and the like), though it serves others as well.
"""

import os
import platform
import sys
import warnings
from collections.abc import Mapping, MutableMapping

VARIABLE = "TF_ENABLE_ONEDNN_OPTS"
REMEDY = f"export {VARIABLE}=1, or import colonnade before tensorflow"
LOST = (
    "TensorFlow runs without oneDNN, its faster kernels for CPUs: convolutions and matrix products may take "
    "twice as long."
)


def switch_on(environment: MutableMapping[str, str] = os.environ) -> None:
    """Switch it on, if TensorFlow is still to come and nobody has decided otherwise.

    Only on x86: of others, TensorFlow documents no gain.
    """
    global _ours
    if "tensorflow" not in sys.modules and on_x86() and VARIABLE not in environment:
        environment[VARIABLE] = "1"
        _ours = True


def as_found(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment as it was before Colonnade came."""
    return {name: value for name, value in environment.items() if name != VARIABLE or not _ours}


def on_x86() -> bool:
    return platform.machine().lower() in ("x86_64", "amd64")


def is_on() -> bool:
    """Whether TensorFlow uses it: what a convolution becomes tells."""
    import tensorflow as tf

    with tf.Graph().as_default() as graph, tf.device("/device:CPU:0"):
        image = tf.compat.v1.placeholder(tf.float32, [1, 2, 2, 1])
        convolved = tf.nn.conv2d(image, tf.ones([1, 1, 1, 1]), 1, "SAME")
    run = tf.compat.v1.RunMetadata()
    options = tf.compat.v1.RunOptions(output_partition_graphs=True)
    with tf.compat.v1.Session(graph=graph) as session:
        session.run(convolved, {image: [[[[1.0]] * 2] * 2]}, options=options, run_metadata=run)
    return any("Mkl" in node.op for part in run.partition_graphs for node in part.node)


def lost(environment: MutableMapping[str, str] = os.environ) -> str | None:
    """What is lost without it, and how to mend that; None where it is on, or where someone chose so."""
    if VARIABLE in environment or not on_x86() or is_on():
        return None
    return f"{LOST} {REMEDY[0].upper()}{REMEDY[1:]}."


class SlowTensorFlow(UserWarning):
    """TensorFlow could be faster on this machine."""


def warn() -> None:
    """Tell it once; `warnings.simplefilter("ignore", SlowTensorFlow)` silences it."""
    global _looked
    if _looked:
        return
    _looked = True
    if (words := lost()) is not None:
        warnings.warn(words, SlowTensorFlow, stacklevel=3)


_looked = False
_ours = False  # whether it was Colonnade that set the variable
