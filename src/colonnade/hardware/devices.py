"""`cn.setup()`: which devices TensorFlow sees, virtual devices, memory limits and threads.

A request is checked against the cards of the machine and becomes a `Layout`, which is plain data;
only then is TensorFlow told. So nothing is half set when a request is refused.
"""

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import tensorflow as tf

from colonnade.describe.topology import Topology
from colonnade.errors import AlreadyStarted, InvalidArgument, Problem, check
from colonnade.hardware import cards as nvml
from colonnade.hardware import gpu, onednn
from colonnade.hardware.allocator import keep_blocks
from colonnade.hardware.cards import Card
from colonnade.hardware.clusters import joining
from colonnade.hardware.layout import CONTEXT, Layout, Request, is_count, leased, listed, plan

# What TensorFlow was started with, if setup() did it.
_done: tuple[Request, Layout] | None = None


def setup(
    devices: int | Sequence[int | str] | None = None,
    *,
    virtual: int | None = None,
    memory: float | None = None,
    growth: bool | None = None,
    soft_placement: bool = True,
    threads: int | tuple[int, int] | None = None,
) -> tuple[str, ...]:
    """Choose the devices of this process; call it once, before TensorFlow computes anything.

    Args:
        devices: how many cards, or which: positions in PCI bus order, or UUIDs. All by default.
        virtual: divide the CPU, or the one card that `devices` names, into that many devices.
        memory: what each device may take of its card: a fraction (0.9) or MiB (4096). TensorFlow knows
            no limit for CPU devices; there it is kept, in MiB, and what does not fit by the estimate of
            `cn.memory` is refused before it runs.
        growth: take memory as it is needed; with `memory`, up to that limit.
        soft_placement: let an op without a kernel for its device run on the CPU.
        threads: threads inside an op and between ops: one number for both, or a pair. By default TensorFlow
            chooses; but an op has one thread where the CPU is divided into as many devices as it has
            cores, or more. Processes of one machine that train together divide its cores.

    With CPU devices on glibc, blocks of memory that were freed are kept for the next op; set
    `MALLOC_TRIM_THRESHOLD_` in the environment to settle that yourself.

    Under `colonnade run`, `virtual` and `memory` are by default what was leased, less what CUDA itself takes
    of it: a tenth, or 1 GiB if that is more.

    A program that was started as one of several machines (`TF_CONFIG`, a Slurm step, `colonnade run`) joins
    the others here; see `docs/machines_training.md`.

    Returns:
        The device strings to compute on, those of this machine, for `devices=` anywhere in Colonnade.

    Example:
        >>> import colonnade as cn
        >>> cn.setup(virtual=8)[:2]
        ('/device:CPU:0', '/device:CPU:1')
    """
    global _done
    cards = visible_cards()
    request = leased(Request(devices, virtual, memory, growth, soft_placement, threads), os.environ, cards)
    cluster = joining.unjoined()
    joined = joining.joined()
    together = cluster if joined is None else joined.cluster
    layout = plan(request, cards, processes=1 if together is None else together.beside)
    if started():
        if cluster is not None:
            joining.refuse_late(cluster)
        _refuse_changes(request, layout)
    else:
        if cluster is not None:
            cluster.check_private(os.environ)
        _tell_tensorflow(request, layout)
        if cluster is not None:
            joining.join(cluster)
        _done = request, layout
    tf.config.set_soft_device_placement(soft_placement)
    if layout.kind == "CPU":
        keep_blocks(os.environ)
    # Starting the devices here and not at the first tensor settles them: a second, different
    # setup() is refused, whether or not anything was computed in between.
    check("setup()", _ignored(tf.config.list_logical_devices(layout.kind)))
    if layout.kind == "CPU":
        onednn.warn()
    return names()


def _ignored(there: Sequence[Any]) -> Iterator[Problem]:
    """Cards that were chosen, and that TensorFlow has not started; it does not say which."""
    chosen = len(_chosen("GPU") or _chosen("CPU"))
    if len(there) < chosen:
        said = f"{len(there)} of {chosen}"
        rule = "were started by TensorFlow, which ignores cards that are too old, or have few multiprocessors"
        fix = "Name the others, cn.setup(devices=[...]), or set TF_MIN_GPU_MULTIPROCESSOR_COUNT=1"
        yield Problem("devices", said, rule, fix)


def visible_cards() -> tuple[Card, ...]:
    """The cards that TensorFlow can use here; none for a TensorFlow built without CUDA."""
    if not tf.test.is_built_with_cuda():
        return ()
    gpu.use_bus_order(os.environ)
    return gpu.visible(nvml.detect().cards, os.environ)


def topology() -> Topology:
    """The links between the devices to compute on, in the order of `names()`.

    The parts of a divided card share its memory, and so do virtual CPU devices.
    """
    ordinals = _ordinals()
    if not ordinals:
        return Topology.uniform(len(names()))
    machine = nvml.detect()
    place = {card.index: at for at, card in enumerate(machine.cards)}
    card_of = {row.ordinal: place[row.index] for row in gpu.names(machine.cards, os.environ)}
    if not card_of.keys() >= set(ordinals):  # CUDA's order is not known, or a card did not answer
        return Topology.uniform(len(ordinals), link="SYS")
    return machine.topology.select(card_of[ordinal] for ordinal in ordinals)


def _ordinals() -> list[int]:
    """CUDA's number of the card of each device to compute on; empty where these are no cards."""
    ordinals = []
    for device in tf.config.get_visible_devices("GPU"):
        divided = tf.config.get_logical_device_configuration(device) or [None]
        ordinals += [int(device.name.rpartition(":")[2])] * len(divided)
    return ordinals


def cards_of(devices: Sequence[str]) -> tuple[Card, ...]:
    """The card of each device, the same one for parts of a divided card; empty if that is not known."""
    if not are_cards(devices):
        return ()
    cards, ordinals = visible_cards(), _ordinals()
    if not ordinals:
        return ()
    own = [ordinals[names().index(device)] for device in devices]
    return tuple(cards[ordinal] for ordinal in own) if max(own) < len(cards) else ()


def are_cards(devices: Sequence[str]) -> bool:
    """Whether these are cards of this machine, whose links differ, and not CPU or remote devices."""
    return all(device in names() and "GPU" in device for device in devices)


def is_card(device: str) -> bool:
    """Whether a device is a card, or a part of one."""
    return "GPU" in device


def has_cards() -> bool:
    """Whether TensorFlow may use a card here. Does not start TensorFlow."""
    return bool(tf.config.get_visible_devices("GPU"))


def compiles_for(device: str) -> bool:
    """Whether XLA compiles for a device: for the CPU, and for cards whose abilities TensorFlow knows."""
    if not is_card(device):
        return "CPU" in device
    cards = tf.config.get_visible_devices("GPU")
    known = all("compute_capability" in tf.config.experimental.get_device_details(card) for card in cards)
    return known and _has_compiled()


@cache
def _has_compiled() -> bool:
    """Whether XLA has compiled something small for a card: it needs files of CUDA that may be missing.

    What is compiled has a root and a power, for which XLA takes such files. If it fails, that is said once.
    """
    with tf.init_scope(), tf.device(names()[0]):
        small = tf.function(lambda x: tf.sqrt(x) * tf.exp(x) ** 1.5, jit_compile=True, autograph=False)
        try:
            small(tf.constant([1.0, 2.0])).numpy()
        except tf.errors.OpError as error:
            said = str(error.message).strip().partition("\n")[0]
            what = "XLA does not compile for the cards of this machine, so updates are made op by op"
            warnings.warn(f"{what}. TensorFlow says: {said}", stacklevel=2)
            return False
    return True


def preferred_variables(devices: Sequence[str]) -> str:
    """Where variables live best: in one copy where a read costs nothing, else on every device."""
    return "mirrored" if any(map(is_card, devices)) else "shared"


def started() -> bool:
    """Whether TensorFlow has started its devices, so that settings come too late.

    TensorFlow has no public word for it; it refuses to change a thread count once started.
    """
    threads = tf.config.threading.get_inter_op_parallelism_threads()
    try:
        tf.config.threading.set_inter_op_parallelism_threads(threads + 1)
    except RuntimeError:
        return True
    tf.config.threading.set_inter_op_parallelism_threads(threads)
    return False


def _refuse_changes(request: Request, layout: Layout) -> None:
    """Soft placement can change at any time; everything else is settled when TensorFlow starts."""
    nothing_asked = Request(soft_placement=request.soft_placement) == request
    if nothing_asked or (_done is not None and _done[1] == layout):
        return
    state = f"{_done[0]} was called before" if _done else "it was started without setup()"
    raise AlreadyStarted(
        f"{request} comes too late: TensorFlow has already started its devices.\n"
        f"  asked:  {request}\n"
        f"  is set: {', '.join(names())}; {state}\n"
        f"  fix:    call setup() once, right after the imports, before the first tensor, model or dataset;\n"
        f"          in a notebook, restart the kernel first"
    )


def _tell_tensorflow(request: Request, layout: Layout) -> None:
    physical = tf.config.list_physical_devices(layout.kind)
    if len(physical) <= max(layout.visible):
        rule = (
            f"TensorFlow found {len(physical)} of the {max(layout.visible) + 1} cards that the driver lists"
        )
        fix = "To see why: colonnade doctor. To use the CPU: hide the cards with CUDA_VISIBLE_DEVICES=-1"
        raise InvalidArgument("setup()", [Problem("devices", request.devices, rule, fix)])
    if layout.kind == "GPU":
        tf.config.set_visible_devices([physical[i] for i in layout.visible], "GPU")
    for position, parts in zip(layout.visible, layout.parts, strict=True):
        if request.virtual is not None or any(limit is not None for limit in parts):
            # TensorFlow refuses a limit on CPU devices; those are kept here (see estimated_limit).
            limits = parts if layout.kind == "GPU" else [None] * len(parts)
            divided = [tf.config.LogicalDeviceConfiguration(memory_limit=limit) for limit in limits]
            tf.config.set_logical_device_configuration(physical[position], divided)
    if layout.growth is not None:
        # TensorFlow's Python API takes a limit or growth and drops the other. Its allocator honours
        # both when growth comes from this variable, which it reads when it starts.
        os.environ[gpu.GROWTH] = "true" if layout.growth else "false"
    if layout.threads is not None:
        tf.config.threading.set_intra_op_parallelism_threads(layout.threads[0])
        tf.config.threading.set_inter_op_parallelism_threads(layout.threads[1])


def has_limits() -> bool:
    """Whether some device has a limit that only an estimate can keep."""
    return _done is not None and _done[1].kind == "CPU" and any(_done[1].parts[0])


def estimated_limit(device: str) -> int | None:
    """What a device may take by an estimate (bytes), where TensorFlow itself sets no limit."""
    if _done is None or _done[1].kind != "CPU" or device not in names():
        return None
    limit = _done[1].parts[0][names().index(device)]
    return None if limit is None else limit * 2**20


def room(device: str) -> int | None:
    """What a device may take (bytes): by an estimate, by TensorFlow's limit, or all that a card has.

    Parts of a card without limits share it. None where nothing is known, as for the CPU without a limit.
    """
    if "GPU" not in device or device not in names():
        return estimated_limit(device)
    cards = visible_cards()
    rooms: list[int | None] = []
    for physical in tf.config.get_visible_devices("GPU"):
        divided = tf.config.get_logical_device_configuration(physical) or [None]
        position = int(physical.name.rpartition(":")[2])
        whole = cards[position].mib if position < len(cards) else 0
        for part in divided:
            limit = getattr(part, "memory_limit", None) or max(0, whole - CONTEXT) // len(divided)
            rooms.append(int(limit) * 2**20 or None)
    return rooms[names().index(device)]


def without_cards(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment in which a process sees the CPU only."""
    return {**environment, gpu.VISIBLE: "-1"}


def names() -> tuple[str, ...]:
    """The devices to compute on: the visible cards, else the CPU devices. Does not start TensorFlow.

    Once TensorFlow has started, those of the cards that it did start: it ignores some that are old or small.
    """
    cards = _chosen("GPU")
    if cards and started():
        cards = cards[: len(tf.config.list_logical_devices("GPU"))]
    return cards or _chosen("CPU")


def _chosen(kind: str) -> tuple[str, ...]:
    """The devices of a kind that TensorFlow is told to use."""
    divided = [
        tf.config.get_logical_device_configuration(device) or [None]
        for device in tf.config.get_visible_devices(kind)
    ]
    return tuple(f"/device:{kind}:{i}" for i in range(sum(map(len, divided))))


def resolve(
    devices: int | Sequence[int | str] | None, where: str, argument: str = "devices"
) -> tuple[str, ...]:
    """Device strings from what a user passes as `devices=`: None (all), a count, positions, strings."""
    have, wanted = names(), listed(devices)
    if wanted is None:
        return have
    if isinstance(wanted, tuple):
        resolved = [_found(device, have) for device in wanted]
        check(where, _unresolved(wanted, resolved, have, argument))
        return tuple(str(device) for device in resolved)
    check(where, _miscounted(wanted, have, argument))
    return have[:wanted]


def _found(device: Any, have: Sequence[str]) -> str | None:
    """The device string for a position or a string; None where there is no such device here."""
    if not isinstance(device, str):
        return dict(enumerate(have)).get(device) if not isinstance(device, bool) else None
    try:
        spec = tf.DeviceSpec.from_string(device if device.startswith("/") else f"/device:{device}")
    except ValueError:
        return None
    if spec.device_type is None or spec.device_index is None:
        return None
    if spec.job not in (None, "localhost"):
        return str(spec.to_string())
    local = f"/device:{spec.device_type}:{spec.device_index}"
    every = {*have, *(f"/device:CPU:{i}" for i in range(_num_cpus()))}
    return local if local in every else None


def _num_cpus() -> int:
    return sum(
        len(tf.config.get_logical_device_configuration(d) or [0])
        for d in tf.config.get_visible_devices("CPU")
    )


def _miscounted(count: Any, have: Sequence[str], argument: str) -> Iterator[Problem]:
    if not is_count(count):
        yield Problem(
            argument, count, "must be a count from 1 up, positions or device strings", "Leave it out for all"
        )
    elif count > len(have):
        rule = f"TensorFlow has {len(have)} device{'s' if len(have) > 1 else ''} here ({', '.join(have)})"
        late = " (in a new process: TensorFlow has started)" if started() else ""
        yield Problem(argument, count, rule, f"Right after the imports: cn.setup(virtual={count}){late}")


def _unresolved(
    wanted: tuple[Any, ...], resolved: Sequence[str | None], have: Sequence[str], argument: str
) -> Iterator[Problem]:
    if not wanted:
        yield Problem(argument, wanted, "names no device", "Leave it out for all")
    known = [device for device in resolved if device is not None]
    if len(set(known)) < len(known):
        yield Problem(argument, wanted, "names a device twice", "Name each once")
    for asked, device in zip(wanted, resolved, strict=True):
        if device is None:
            yield Problem(argument, asked, "there is no such device", f"One of: {', '.join(have)}")
