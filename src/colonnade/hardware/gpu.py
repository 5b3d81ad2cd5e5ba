"""What is special about NVIDIA cards: how drivers, CUDA and TensorFlow number them."""

from collections.abc import Mapping, MutableMapping, Sequence

from colonnade.errors import InvalidArgument, Problem
from colonnade.hardware.cards import Card

VISIBLE = "CUDA_VISIBLE_DEVICES"
ORDER = "CUDA_DEVICE_ORDER"
GROWTH = "TF_FORCE_GPU_ALLOW_GROWTH"


def use_bus_order(environment: MutableMapping[str, str]) -> None:
    """Make CUDA number the cards as NVML does; refuse another order, in which a card would be mistaken."""
    order = environment.setdefault(ORDER, "PCI_BUS_ID")
    if order != "PCI_BUS_ID":
        rule = "Colonnade tells cards apart by PCI bus order"
        raise InvalidArgument(
            "the environment", [Problem(ORDER, order, rule, f"Unset it, or set {ORDER}=PCI_BUS_ID")]
        )


def visible(cards: Sequence[Card], environment: Mapping[str, str]) -> tuple[Card, ...]:
    """The cards that this process may use, in the order in which CUDA and TensorFlow number them.

    `CUDA_VISIBLE_DEVICES` lists indices or (prefixes of) UUIDs; CUDA stops at the first entry
    that names no card, and so does this.
    """
    listed = environment.get(VISIBLE)
    if listed is None:
        return tuple(cards)
    chosen: list[Card] = []
    for entry in (part.strip() for part in listed.split(",")):
        if entry.isdecimal():
            named = [card for card in cards if card.index == int(entry)]
        else:
            named = [card for card in cards if entry and card.uuid.startswith(entry)]
        if len(named) != 1 or named[0] in chosen:
            break
        chosen.append(named[0])
    return tuple(chosen)
