"""How long a layer takes: as it was measured, or from its FLOPs and bytes on the device at hand.

Without timings a layer takes the time of its matrix products, at the rate that large ones reach, and that
of moving what it keeps: every byte of the activations is written once and read once.

Timings are of one device. On another one they are scaled by what large matrix products reach on both, where
that is known; where it is not, as of a processor, FLOPs and bytes count; where these are not known either,
nothing can be told.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from colonnade.describe import speeds
from colonnade.describe.layer_cost import LayerCost
from colonnade.describe.link import Device
from colonnade.describe.workload import Workload
from colonnade.errors import InvalidArgument, Problem

# The backward pass has two matrix products for each of the forward pass.
BACKWARD = 2.0
HALVES = ("float16", "bfloat16", "mixed_float16", "mixed_bfloat16")
# TensorFlow lets cards that can round the factors of a product in 32 bits to 19 (TF32). Of programs that
# switched this off, as PyTorch does by default:
STRICT = "float32 without TF32"
# Names of TensorFlow: devices that share a processor are alike, of a card it does not say which it is.
_PROCESSOR, _CARD = re.compile(r"CPU:[0-9]+"), re.compile(r"(?!CPU)[A-Z]+:[0-9]+")


@dataclass(frozen=True)
class Seconds:
    """Of a layer, for so many examples."""

    forward: float
    backward: float


@lru_cache(maxsize=4096)
def rate(device: Device, dtype: str) -> float | None:
    """FLOP/s of a large matrix product on a device: measured, or the usual part of the peak; None if not
    known.

    >>> from colonnade.describe.link import Device
    >>> card = Device("NVIDIA A100-SXM4-80GB", achieved=130e12)
    >>> rate(card, "float16") / 1e12, rate(card, "float32") / 1e12, rate(card, STRICT) / 1e12
    (250.536, 130.0, 15.6585)
    """
    part = speeds.figure("card", "achieved")
    if dtype in HALVES:
        peak = speeds.of_card(device.name, "fp16")
        if device.achieved_half is not None or peak is not None:
            return device.achieved_half or part * (peak or 0.0)
    # What was measured in float32 has TF32 in it where the card can do that.
    rounded = None if dtype == STRICT else speeds.of_card(device.name, "tf32")
    if device.achieved is not None and (dtype != STRICT or speeds.of_card(device.name, "tf32") is None):
        return device.achieved
    peak = device.flops or rounded or speeds.flops(device.name)
    return None if peak is None else peak * part


def timed(layer: LayerCost, rows: float) -> Seconds:
    """By the timings: fixed + per example, where there are two of them.

    >>> from colonnade.describe.layer_cost import LayerCost, Timing
    >>> timed(LayerCost("a", timings=(Timing(10, 1.0, 2.0), Timing(20, 1.5, 3.0))), 40).forward
    2.5
    """
    if len(layer.timings) == 1:
        one = layer.timings[0]
        return Seconds(one.forward * rows / one.batch, one.backward * rows / one.batch)
    small, large = sorted(layer.timings, key=lambda timing: timing.batch)
    return Seconds(
        _line(small.batch, small.forward, large.batch, large.forward, rows),
        _line(small.batch, small.backward, large.batch, large.backward, rows),
    )


def gain(layer: LayerCost, rows: float) -> float | None:
    """How many times the work of one device several do at once, where that was measured.

    >>> from colonnade.describe.layer_cost import LayerCost, Timing
    >>> gain(LayerCost("a", timings=(Timing(10, 1.0, 2.0, 0.5), Timing(20, 2.0, 4.0, 1.0))), 15)
    0.75
    """
    known = [
        (t.batch, t.forward + t.backward, t.gain)
        for t in sorted(layer.timings, key=lambda timing: timing.batch)
        if t.gain is not None
    ]
    if not known:
        return None
    (small, t0, least), (large, t1, most) = known[0], known[-1]
    if rows <= small or not t0 or not t1:
        return least
    if rows >= large:
        return most
    # What a device takes alone and what it takes among others are lines; their quotient is none.
    alone, among = (_line(small, a, large, b, rows) for a, b in ((t0, t1), (t0 / least, t1 / most)))
    low, high = sorted((least, most))
    return min(max(alone / among, low), high) if among else most


def _line(b0: float, t0: float, b1: float, t1: float, rows: float) -> float:
    """Through both points, and not falling, which noise would make it.

    Where an example of the larger batch takes longer than one of the smaller, as its numbers are no longer in
    a cache, a line would be below zero at its foot: outside of the points examples take what they took there.
    """
    slope = max(0.0, (t1 - t0) / (b1 - b0))
    if slope * b1 > t1 and not b0 < rows < b1:
        return t0 * rows / b0 if rows <= b0 else t1 * rows / b1
    return t1 + slope * (rows - b1)


def seconds(
    workload: Workload, layer: LayerCost, device: Device, rows: float, width: int = 1, sequence: bool = False
) -> Seconds:
    """Of one layer for so many examples on one of `width` devices that it is split over."""
    times = against(workload, device) if layer.timings else None
    if times is not None:
        whole = timed(layer, rows)
        share = workload.pace * times / (width if layer.exchanged else 1)
        return Seconds(whole.forward * share, whole.backward * share)
    if layer.timings and not workload.flops:
        raise _unknown(workload, device)
    split = width if layer.exchanged else 1
    kept = layer.activations if sequence else layer.activations - layer.unsplit
    each = kept / split + (0 if sequence else layer.unsplit)
    ahead = _untimed(workload, device, rows * layer.flops / split, rows * each)
    return Seconds(ahead, BACKWARD * ahead)


def update_seconds(workload: Workload, device: Device) -> float:
    """Of the update of all parameters, which reads and writes them and the slots, and reads the gradients."""
    moved = 2 * workload.parameters + workload.gradient_bytes + 2 * workload.slots
    return _by_memory(workload, device, workload.update, moved)


def addition_seconds(workload: Workload, device: Device) -> float:
    """Of adding one device's gradients to those of another: two are read, one is written."""
    return _by_memory(workload, device, workload.addition, 3 * workload.gradient_bytes)


def total(workload: Workload, device: Device, rows: float) -> float:
    """Seconds of all layers for so many examples, there and back."""
    counted: dict[LayerCost, int] = {}
    for layer in workload.layers:
        counted[layer] = counted.get(layer, 0) + 1
    took = [(seconds(workload, layer, device, rows), count) for layer, count in counted.items()]
    return sum(count * (one.forward + one.backward) for one, count in took)


def slices(
    workload: Workload, devices: Sequence[Device], rows: float, slow: Sequence[float] | None = None
) -> list[float]:
    """How `rows` examples are divided where each device gets them by how fast it is with an equal slice.

    `slow` tells how many times as long each one takes, beside what its figures say.
    """
    paces = slow or [1.0] * len(devices)
    known: dict[Device, float] = {}
    for device in devices:
        if device not in known:
            known[device] = total(workload, device, rows / len(devices))
    rates = [1 / (known[d] * pace) if known[d] else 1.0 for d, pace in zip(devices, paces, strict=True)]
    return [rows * one / sum(rates) for one in rates]


def cheap_seconds(workload: Workload, layer: LayerCost, device: Device, rows: float, width: int = 1) -> float:
    """To recompute what costs little, in the backward pass: mostly moving what is not kept."""
    if layer.timings:
        whole = seconds(workload, layer, device, rows, width).forward
        return whole * layer.cheap_flops / layer.flops if layer.flops else 0.0
    split = width if layer.exchanged else 1
    return _untimed(workload, device, rows * layer.cheap_flops / split, rows * layer.cheap / split)


def _untimed(workload: Workload, device: Device, flops: float, kept: float) -> float:
    """Of so many FLOPs, and of activations of so many bytes, each of which is written once and read once."""
    products = flops / _rate(device, workload) if flops else 0.0
    bandwidth = speeds.of_card(device.name, "memory")
    return workload.pace * (products + (2 * kept / bandwidth if bandwidth else 0.0))


def against(workload: Workload, device: Device) -> float | None:
    """How many times as long a device takes as the one that was timed; None where that is not known."""
    return _against(workload.device, device, workload.dtype)


@lru_cache(maxsize=4096)
def _against(there: str, device: Device, dtype: str) -> float | None:
    alike = not there or there == device.name or _CARD.fullmatch(there) is not None
    if alike or (_PROCESSOR.fullmatch(there) and (device.cores or _PROCESSOR.fullmatch(device.name))):
        return 1.0
    timed_there, here = rate(Device(there), dtype), rate(device, dtype)
    return timed_there / here if timed_there and here else None


def converted(workload: Workload, devices: Sequence[Device]) -> str:
    """In words, what became of timings that were taken on another device; empty where they are its own."""
    if not any(layer.timings for layer in workload.layers):
        return ""
    others = {device.name: device for device in devices if against(workload, device) != 1.0}
    if not others:
        return ""
    names = ", ".join(others)
    if all(against(workload, device) is not None for device in others.values()):
        return f"It was timed on {workload.device}; on {names} times are scaled by what products reach"
    return (
        f"It was timed on {workload.device}, which tells nothing of {names}: its times follow from FLOPs and "
        "published rates, which small layers do not reach"
    )


def _by_memory(workload: Workload, device: Device, took: float, moved: int) -> float:
    """What a pass over so many bytes takes, which took so long on the device that was timed."""
    times = against(workload, device)
    if times == 1.0 or not took:
        return took
    here, there = (speeds.of_card(name, "memory") for name in (device.name, workload.device))
    if here:
        return took * there / here if there else moved / here
    if times is None:
        raise _unknown(workload, device)
    return took * times


def _rate(device: Device, workload: Workload) -> float:
    known = rate(device, workload.dtype)
    if known is None:
        raise _unknown(workload, device)
    return known


def _unknown(workload: Workload, device: Device) -> InvalidArgument:
    if not any(layer.timings for layer in workload.layers):
        rule = "was not timed, and the FLOP/s of this device are not known"
        fix = "Measure with cn.workload() or colonnade devices --measure, or set Device.flops"
    elif not workload.flops:
        rule = f"was timed on {workload.device}, has no FLOPs, and says nothing of another device"
        fix = "Measure it there with cn.workload(), or give the layers their FLOPs"
    else:
        rule = f"was timed on {workload.device}, and how much faster or slower this device is, is not known"
        fix = "Measure it there with cn.workload(), or set Device.flops"
    return InvalidArgument("simulate()", [Problem("workload", workload.name, f"{rule} ({device.name})", fix)])
