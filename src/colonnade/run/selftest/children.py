"""What is tried on cards by processes of their own: while this one computes there too, or before it does.

Cards in exclusive-process mode let one process in at a time. There the others go first, and what they said is
kept for the checks that ask for it later.
"""

from collections.abc import Sequence

import pynvml
import tensorflow as tf

from colonnade.hardware import devices as hardware
from colonnade.hardware import gpu
from colonnade.hardware.cards import Card
from colonnade.hardware.doctors.admission import COMPILED, fit_of, lets_others_in
from colonnade.hardware.probes import collective, limit
from colonnade.hardware.probes.watchdog import Answer, ask

# Seconds that such a process may need, with TensorFlow's start; and so many more with kernels to compile,
# which CUDA keeps for those after it.
PATIENCE, COMPILING = 120.0, collective.AT_FIRST

# What was said before this process took the cards, by their UUIDs.
_sums: dict[tuple[str, ...], tuple[Answer, str]] = {}
_limits: dict[str, Answer] = {}


def cards_of(devices: Sequence[str]) -> tuple[Card, ...]:
    """The cards of these devices; where it is not known which, those that TensorFlow may use."""
    return hardware.cards_of(devices) or hardware.visible_cards()


def ask_first(cards: Sequence[Card]) -> None:
    """Before TensorFlow starts here: ask what could not be asked afterwards."""
    if lets_others_in(cards) or any(card.mode == pynvml.NVML_COMPUTEMODE_PROHIBITED for card in cards):
        return
    if len(cards) > 1:
        _sums[_names(cards)] = collective.ask_cards(len(cards), patience(cards), cards)
    if can_limit(cards[0]):
        _limits[cards[0].uuid] = _asked(cards[0])


def sums(cards: Sequence[Card]) -> tuple[Answer, str] | None:
    """What the cards' library says, and its version; None if nobody else is let in."""
    if _names(cards) in _sums:
        return _sums[_names(cards)]
    return collective.ask_cards(len(cards), patience(cards), cards) if lets_others_in(cards) else None


def memory(card: Card) -> Answer | None:
    """What a process found that has a limit on a card; None if nobody else is let in."""
    if card.uuid in _limits:
        return _limits[card.uuid]
    return _asked(card) if lets_others_in([card]) else None


def can_limit(card: Card) -> bool:
    """Whether a limit can be tried on a card: it tells what is taken, and has some memory left."""
    return not card.mig and card.memory is not None and limit.limit_for(card) >= limit.SMALLEST


def patience(cards: Sequence[Card]) -> float:
    """Seconds that a process on these cards may need: more if TensorFlow has no machine code for them."""
    built_for = tf.sysconfig.get_build_info().get("cuda_compute_capabilities", ())
    known = {card.capability for card in cards if card.capability is not None}
    return PATIENCE + (COMPILING if built_for and fit_of(known, built_for) == COMPILED else 0.0)


def _asked(card: Card) -> Answer:
    own = {gpu.VISIBLE: card.uuid}
    return ask(limit.__name__, str(limit.limit_for(card)), seconds=patience([card]), environment=own)


def _names(cards: Sequence[Card]) -> tuple[str, ...]:
    return tuple(card.uuid for card in cards)
