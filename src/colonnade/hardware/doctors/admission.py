"""Whether cards let programs in, and whether TensorFlow has code for them: checks of `colonnade doctor`."""

import re
from collections.abc import Sequence

import pynvml

from colonnade.hardware.cards import Card
from colonnade.hardware.doctors.finding import Finding
from colonnade.hardware.probes.probe import TensorFlow

NO_CARDS = "there is no card to look at"


def architecture(cards: Sequence[Card], tensorflow: TensorFlow) -> Finding:
    """Whether the build of TensorFlow has machine code for the cards, or at least code to be compiled."""
    check, why = "architecture", "a card runs machine code of its own generation only"
    known = {card.capability for card in cards if card.capability is not None}
    if not known:
        return Finding(check, "unknown", NO_CARDS if not cards else "the driver does not tell it", why)
    if not tensorflow.built_for:
        return Finding(check, "unknown", "TensorFlow does not say what it was built for", why)
    name, built = f"TensorFlow {tensorflow.version}", ", ".join(tensorflow.built_for)
    states = {_fit(capability, tensorflow.built_for) for capability in known}
    cards_are = f"cards of {', '.join(f'{a}.{b}' for a, b in sorted(known))}; {name} is built for {built}"
    if "none" in states:
        remedy = "pip install --upgrade 'tensorflow[and-cuda]', or take a build that is made for these cards"
        return Finding(check, "blocks", cards_are, why, remedy)
    if "compiled" in states:
        remedy = "A newer TensorFlow may have machine code; else raise CUDA_CACHE_MAXSIZE, so that it is kept"
        later = f"{cards_are}: kernels are compiled when a program starts, for up to half an hour at first"
        return Finding(check, "note", later, why, remedy)
    return Finding(check, "good", cards_are, why)


def _fit(capability: tuple[int, int], built_for: Sequence[str]) -> str:
    """
    >>> _fit((8, 6), ["sm_80", "compute_90"]), _fit((12, 0), ["sm_80", "compute_90"]), _fit((7, 5), ["sm_80"])
    ('code', 'compiled', 'none')
    """
    for kind, fits in (("sm", _same_major), ("compute", tuple.__le__)):
        builds = [re.fullmatch(rf"{kind}_(\d+)(\d)[a-z]?", name) for name in built_for]
        if any(match and fits((int(match[1]), int(match[2])), capability) for match in builds):
            return "code" if kind == "sm" else "compiled"
    return "none"


def _same_major(built: tuple[int, int], capability: tuple[int, int]) -> bool:
    return built[0] == capability[0] and built[1] <= capability[1]


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
