"""How long a layer takes: as it was measured, or from its FLOPs and bytes on the device at hand.

Without timings a layer takes the time of its matrix products, at the rate that large ones reach, and that
of moving what it keeps: every byte of the activations is written once and read once.
"""

from dataclasses import dataclass

from colonnade.describe import speeds
from colonnade.describe.layer_cost import LayerCost
from colonnade.describe.link import Device
from colonnade.describe.workload import Workload
from colonnade.errors import InvalidArgument, Problem

# The backward pass has two matrix products for each of the forward pass.
BACKWARD = 2.0


@dataclass(frozen=True)
class Seconds:
    """Of a layer, for so many examples."""

    forward: float
    backward: float


def rate(device: Device, dtype: str) -> float | None:
    """FLOP/s of a large matrix product on a device: measured, or the usual part of the peak; None if not
    known.

    >>> from colonnade.describe.link import Device
    >>> rate(Device("NVIDIA A100-SXM4-80GB"), "float16") / 1e12
    250.536
    """
    if device.achieved is not None:
        return device.achieved
    peak = device.flops or speeds.flops(device.name)
    if dtype in ("float16", "bfloat16", "mixed_float16", "mixed_bfloat16"):
        peak = speeds.of_card(device.name, "fp16") or peak
    return None if peak is None else peak * speeds.figure("card", "achieved")


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
    >>> gain(LayerCost("a", timings=(Timing(10, 1.0, 2.0, 0.5), Timing(20, 1.5, 3.0, 1.5))), 15)
    1.0
    """
    known = sorted((timing.batch, timing.gain) for timing in layer.timings if timing.gain is not None)
    if not known:
        return None
    (small, least), (large, most) = known[0], known[-1]
    part = (rows - small) / (large - small) if large > small else 0.0
    return least + min(max(part, 0.0), 1.0) * (most - least)


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
    if layer.timings:
        whole = timed(layer, rows)
        share = _speed_against(workload, device) / (width if layer.exchanged else 1)
        return Seconds(whole.forward * share, whole.backward * share)
    split = width if layer.exchanged else 1
    ahead = layer.flops * rows / split / _rate(device, workload) if layer.flops else 0.0
    kept = layer.activations if sequence else layer.activations - layer.unsplit
    moving = 2 * rows * (kept / split + (0 if sequence else layer.unsplit))
    bandwidth = speeds.of_card(device.name, "memory")
    ahead += moving / bandwidth if bandwidth else 0.0
    return Seconds(workload.pace * ahead, workload.pace * BACKWARD * ahead)


def cheap_seconds(workload: Workload, layer: LayerCost, device: Device, rows: float, width: int = 1) -> float:
    """To recompute what costs little, in the backward pass."""
    if not layer.flops:
        return 0.0
    return seconds(workload, layer, device, rows, width).forward * layer.cheap_flops / layer.flops


def _rate(device: Device, workload: Workload) -> float:
    known = rate(device, workload.dtype)
    if known is None:
        rule = "was not timed, and the FLOP/s of this device are not known"
        fix = "Measure with cn.workload() or colonnade devices --measure, or set Device.flops"
        raise InvalidArgument(
            "simulate()", [Problem("workload", workload.name, f"{rule} ({device.name})", fix)]
        )
    return known


def _speed_against(workload: Workload, device: Device) -> float:
    """How many times as long a device takes as the one that was timed, as far as it is known."""
    if not workload.device or workload.device == device.name:
        return workload.pace
    there, here = rate(Device(workload.device), workload.dtype), rate(device, workload.dtype)
    return workload.pace * (there / here if there and here else 1.0)
