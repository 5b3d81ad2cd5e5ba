"""What software does in its own way when it runs a step: Colonnade's engine, and other systems.

The published tables are of other systems. What they do differently is said here once, by the system, and
never by the table.
"""

from dataclasses import dataclass

MIB = 2**20

# Replicas that work in lockstep wait for the slowest, and no step takes exactly as long as the one before.
# The standard deviation of a device's time, as a part of it: fitted to the table of PyTorch's DDP, in
# which nothing else is left to explain (see benchmarks/prediction), and tried on the others.
JITTER = 0.04


@dataclass(frozen=True)
class Runtime:
    """What a system does in its own way."""

    name: str
    overlap: bool = True  # gradients travel while the backward pass is still under way
    bucket: int = 4 * MIB  # bytes of the messages that gradients are joined into
    jitter: float = (
        0.0  # standard deviation of a device's time, as a part of it; not where devices share cores
    )
    slow: tuple[tuple[int, float], ...] = ()  # stragglers: a device, and how many times as long it takes
    wire: float = 1.0  # bytes on the wire for a byte of gradient or parameter: 0.5 where it is sent in half
    fragments: int = 1  # in how many parts local training joins its replicas, one after the other
    delay: float = 0.0  # steps, or parts of one, in which such a join is under way beside training
    early: bool = False  # a stage recomputes before the gradient arrives from which it goes back
    update: bool = True  # whether the time of the update is not in the timings already


ENGINE = Runtime("Colonnade", jitter=JITTER)
DDP = Runtime("PyTorch DDP", bucket=25 * MIB, jitter=JITTER, update=False)
GRAPH = Runtime("TensorFlow 1, in one graph", bucket=0, jitter=JITTER, update=False)
MEGATRON = Runtime("Megatron-LM", overlap=False, bucket=0, jitter=JITTER, update=False)
GPIPE = Runtime("GPipe", overlap=False, bucket=0, early=True, update=False)
# Fuses what is ready into messages of 64 MiB by default, while the backward pass goes on (Horovod's
# docs/tensor-fusion.rst; 128 MiB from version 0.21 on). How often it looks for what is ready is left out.
HOROVOD = Runtime("Horovod", bucket=64 * MIB, jitter=JITTER, update=False)
# Each layer that is wrapped is gathered and scattered by itself, beside the work of its neighbours (PyTorch's
# notes on FSDP); a plan says what is divided.
FSDP = Runtime("PyTorch FSDP", bucket=0, jitter=JITTER, update=False)

# By the names that tables use.
SYSTEMS = {
    "colonnade": ENGINE,
    "ddp": DDP,
    "fsdp": FSDP,
    "horovod": HOROVOD,
    "megatron": MEGATRON,
    "gpipe": GPIPE,
    "graph": GRAPH,
}
