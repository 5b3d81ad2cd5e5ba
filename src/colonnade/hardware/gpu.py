"""What is special about NVIDIA cards: how drivers, CUDA and TensorFlow number them."""

from collections.abc import Mapping, MutableMapping, Sequence

from colonnade.hardware.cards import Card

VISIBLE = "CUDA_VISIBLE_DEVICES"
ORDER = "CUDA_DEVICE_ORDER"
GROWTH = "TF_FORCE_GPU_ALLOW_GROWTH"
# What `colonnade run` tells `setup()`: its arguments of these names, unless the program passes them.
SETUP_VIRTUAL = "COLONNADE_VIRTUAL"
SETUP_MEMORY = "COLONNADE_MEMORY"


def use_bus_order(environment: MutableMapping[str, str]) -> None:
    """Make CUDA number the cards as NVML does, unless the user chose otherwise."""
    environment.setdefault(ORDER, "PCI_BUS_ID")


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
