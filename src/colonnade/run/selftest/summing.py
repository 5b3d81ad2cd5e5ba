"""The check of the self-test that compares ways of summing: whether each is right, and how fast it is.

What it finds on cards is remembered once all checks have ended (`hardware.probes.verdicts`), and
`reduce="auto"` goes by it.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from colonnade.hardware import devices as hardware
from colonnade.hardware.probes import collective, verdicts
from colonnade.hardware.probes.repeated import seconds_per_round
from colonnade.reason.transfers.rings import ring_bandwidth
from colonnade.run.move.reduce import bucket_for, links_of, reduce, spread, tree_for
from colonnade.run.move.reductions import LIBRARY, RING, TREE
from colonnade.run.move.ring import ring_sums
from colonnade.run.selftest import children
from colonnade.run.selftest.verdict import Result, Verdict

# How many numbers each device adds: on cards enough to fill their links, else enough to be cut.
ON_CARDS, ELSEWHERE = collective.SIZES[-1], 1_000

NAME = "sums"  # of the check

Sums = Callable[[Sequence[Any]], Sequence[Any]]


def sums(devices: tuple[str, ...]) -> Verdict:
    """Sums on every device, by each way that there is, against NumPy's; and how fast each is, on cards."""
    if len(devices) < 2:
        return Verdict(None, "it takes two devices")
    cards = hardware.are_cards(devices)
    size = ON_CARDS if cards else ELSEWHERE
    tried = {way: _tried(sums_of, devices, size) for way, sums_of in _ways(devices).items()}
    right = {way: sums == _expected(devices, size) for way, (sums, _) in tried.items()}
    seconds = {way: each for way, (_, each) in tried.items()}
    words, no_answer = "", ""
    refused = any(collective.refusals(devices))
    asked = None if refused else children.sums(children.cards_of(devices)[: len(devices)])
    if asked is not None:
        answer, version = asked
        words = answer.words
        no_answer = answer.trouble or ("" if version else "the sums did not go through it")
        by_size = {} if no_answer else {each["size"]: each for each in answer.said}
        # Of every size: the library takes another way for short messages, and models have both.
        sizes = (*collective.SIZES[:-1], size)
        right[LIBRARY] = all(by_size.get(n, {}).get("sums") == _expected(devices, n) for n in sizes)
        seconds[LIBRARY] = by_size.get(size, {}).get("seconds", float("inf"))
    wrong = [way for way, is_right in right.items() if not is_right and not (no_answer and way == LIBRARY)]
    failed = [f"wrong: {', '.join(wrong)}"] if wrong else []
    failed += [f"no answer of {LIBRARY}: {no_answer}"] if no_answer else []
    if not cards:
        said = f"{', '.join(right)}; no bandwidth: these share one memory"
        return Verdict(not failed, "; ".join(failed) or said)
    passed = {way: took for way, took in seconds.items() if right[way]}
    return _on_cards(devices, size, passed, failed, words)


def remember(devices: Sequence[str], results: Sequence[Result]) -> None:
    """Keep what cards were found to be able to; not their library if any check has failed."""
    measured = next((result.figures for result in results if result.check == NAME), None)
    if measured is None or not hardware.are_cards(devices):
        return
    failed = any(result.state == "failed" for result in results)
    ways = (TREE, RING) if failed else (TREE, RING, LIBRARY)
    verdicts.remember(devices, {way: measured[way]["ms"] / 1e3 for way in ways if way in measured})


def _expected(devices: Sequence[str], size: int) -> list[int]:
    """The checksum of NumPy's sum, once for every device."""
    total = np.sum([collective.numbers(i, size) for i in range(len(devices))], axis=0)
    return [collective.checksum(total)] * len(devices)


def _on_cards(
    devices: Sequence[str], size: int, seconds: dict[str, float], failed: Sequence[str], words: str
) -> Verdict:
    """Bytes per second that every card sends if sums are made as a ring makes them, beside the links' own."""
    n = len(devices)
    moved = 2 * (n - 1) / n * 4 * size
    published = ring_bandwidth(links_of(devices), tuple(range(n)))
    figures = {
        way: {"ms": round(1e3 * took, 6), "GB/s per card": round(moved / took / 1e9, 2)}
        for way, took in seconds.items()
    }
    bandwidths = ", ".join(f"{way} {figure['GB/s per card']:g}" for way, figure in figures.items())
    links = f"{published / 1e9:g}" if np.isfinite(published) else "unknown"
    said = "; ".join([*failed, f"GB/s per card: {bandwidths}", f"the links have {links}"])
    extra = {"links, GB/s per card": links, "bytes": 4 * size}
    return Verdict(not failed, said, {**figures, **extra}, words)


def _ways(devices: tuple[str, ...]) -> dict[str, Sums]:
    order, bucket = tree_for(devices), bucket_for(devices)

    def tree(tensors: Sequence[Any]) -> list[Any]:
        total = reduce([[tensor] for tensor in tensors], devices, order, bucket_bytes=bucket)
        return [own[0] for own in spread(total, devices, order, bucket_bytes=bucket)]

    def ring(tensors: Sequence[Any]) -> list[Any]:
        return [own[0] for own in ring_sums([[tensor] for tensor in tensors], devices, everywhere=True)]

    return {TREE: tree, RING: ring}


def _tried(sums_of: Sums, devices: Sequence[str], size: int) -> tuple[list[int], float]:
    """Checksums of what every device gets, and the seconds that it takes."""
    tensors = []
    for i, device in enumerate(devices):
        with tf.device(device):
            tensors.append(tf.constant(collective.numbers(i, size)))
    once = tf.function(lambda *held: sums_of(held), autograph=False)
    checksums = [collective.checksum(total.numpy()) for total in once(*tensors)]
    if not hardware.are_cards(devices):
        return checksums, 0.0
    return checksums, seconds_per_round(collective.means_of(sums_of, devices), tensors)
