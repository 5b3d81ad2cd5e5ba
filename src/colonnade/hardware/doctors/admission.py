"""Whether cards let programs in, and whether TensorFlow has code for them: checks of `colonnade doctor`."""

import re
from collections.abc import Iterable, Sequence

import pynvml

from colonnade.hardware.cards import Card
from colonnade.hardware.doctors.finding import Finding
from colonnade.hardware.probes.probe import TensorFlow

NO_CARDS = "there is no card to look at"
# What a build of TensorFlow has for a card: code for its machine, code to be compiled first, or nothing.
CODE, COMPILED, NOTHING = "code", "compiled", "none"


def architecture(cards: Sequence[Card], tensorflow: TensorFlow) -> Finding:
    """Whether the build of TensorFlow has machine code for the cards, or at least code to be compiled."""
    check, why = "architecture", "a card runs machine code of its own generation only"
    known = {card.capability for card in cards if card.capability is not None}
    if not known:
        return Finding(check, "unknown", NO_CARDS if not cards else "the driver does not tell it", why)
    if not tensorflow.built_for:
        return Finding(check, "unknown", "TensorFlow does not say what it was built for", why)
    name, built = f"TensorFlow {tensorflow.version}", ", ".join(tensorflow.built_for)
    fit = fit_of(known, tensorflow.built_for)
    cards_are = f"cards of {', '.join(f'{a}.{b}' for a, b in sorted(known))}; {name} is built for {built}"
    if fit == NOTHING:
        remedy = "pip install --upgrade 'tensorflow[and-cuda]', or take a build that is made for these cards"
        return Finding(check, "blocks", cards_are, why, remedy)
    if fit == COMPILED:
        remedy = "A newer TensorFlow may have machine code; else raise CUDA_CACHE_MAXSIZE, so that it is kept"
        later = f"{cards_are}: kernels are compiled when a program starts, for up to half an hour at first"
        return Finding(check, "note", later, why, remedy)
    return Finding(check, "good", cards_are, why)


def fit_of(capabilities: Iterable[tuple[int, int]], built_for: Sequence[str]) -> str:
    """What a build has for cards: the worst of all.

    >>> fit_of([(8, 6), (9, 0)], ["sm_80", "compute_90"]), fit_of([(8, 6), (12, 0)], ["sm_80", "compute_90"])
    ('code', 'compiled')
    """
    states = {_fit(capability, built_for) for capability in capabilities}
    return next((state for state in (NOTHING, COMPILED) if state in states), CODE)


def _fit(capability: tuple[int, int], built_for: Sequence[str]) -> str:
    """In TensorFlow's settings `sm_80` means machine code; `compute_90` or `9.0` also code to be compiled.

    Machine code runs on later cards of the same major number, code to be compiled on all later cards. What
    ends in a letter is for these cards alone (`sm_90a`), or for those of one major number (`sm_100f`).
    """
    fit = NOTHING
    for name in built_for:
        match = re.fullmatch(r"(sm_|compute_|)(\d+)\.?(\d)([af]?)", name)
        if match is None:
            continue
        built = int(match[2]), int(match[3])
        if built == capability or (match[4] != "a" and built[0] == capability[0] and built < capability):
            return CODE
        if match[1] != "sm_" and not match[4] and built < capability:
            fit = COMPILED
    return fit


def compute_mode(cards: Sequence[Card]) -> Finding:
    """How many processes a card lets in."""
    check, why = "compute mode", "a selftest, a sweep and `colonnade run` put several processes on a card"
    if not cards:
        return Finding(check, "unknown", NO_CARDS, why)
    closed = _with(cards, pynvml.NVML_COMPUTEMODE_PROHIBITED)
    alone = _with(cards, pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS)
    remedy = "sudo nvidia-smi -c DEFAULT"
    if closed:
        return Finding(check, "blocks", f"{closed}: no process may compute there", why, remedy)
    if alone:
        finding = f"{alone}: one process at a time, so parts of a card cannot be leased"
        return Finding(check, "note", finding, why, f"{remedy}, or keep it and lease whole cards")
    return Finding(check, "good", "all cards let several processes in", why)


def lets_others_in(cards: Sequence[Card]) -> bool:
    """Whether a second process may compute on these cards while this one does."""
    return all(card.mode == pynvml.NVML_COMPUTEMODE_DEFAULT for card in cards)


def _with(cards: Sequence[Card], mode: int) -> str:
    numbers = [str(card.index) for card in cards if card.mode == mode]
    return f"card{'s' * (len(numbers) > 1)} {', '.join(numbers)}" if numbers else ""
