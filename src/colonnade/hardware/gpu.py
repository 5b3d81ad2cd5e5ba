"""What is special about NVIDIA cards: how drivers, CUDA and TensorFlow number them."""

import re
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace

from colonnade.errors import InvalidArgument, Problem
from colonnade.hardware.cards import Card, Instance

VISIBLE = "CUDA_VISIBLE_DEVICES"
ORDER = "CUDA_DEVICE_ORDER"
BUS_ORDER = "PCI_BUS_ID"
GROWTH = "TF_FORCE_GPU_ALLOW_GROWTH"
# What `colonnade run` tells `setup()`: its arguments of these names, unless the program passes them.
SETUP_VIRTUAL = "COLONNADE_VIRTUAL"
SETUP_MEMORY = "COLONNADE_MEMORY"
# How the names of settings begin that are meant for all machines of a training.
SETTINGS = ("NCCL_",)


@dataclass(frozen=True)
class Names:
    """All the names of one card, or of one MIG instance, in this process.

    `ordinal` and `device` are None for what CUDA and TensorFlow do not see here, and where CUDA's
    order cannot be known.
    """

    index: int  # NVML's, of the card
    uuid: str  # of the card, or of the instance
    bus_id: str  # as NVML writes it
    ordinal: int | None  # CUDA's
    device: str | None  # TensorFlow's
    visible: bool
    listed: bool  # by CUDA_VISIBLE_DEVICES, or that is not set; of several instances CUDA still sees one
    instance: Instance | None = None


def use_bus_order(environment: MutableMapping[str, str]) -> None:
    """Make CUDA number the cards as NVML does; refuse another order, in which a card would be mistaken."""
    order = environment.setdefault(ORDER, BUS_ORDER)
    if order != BUS_ORDER:
        rule = "Colonnade tells cards apart by PCI bus order"
        raise InvalidArgument(
            "the environment", [Problem(ORDER, order, rule, f"Unset it, or set {ORDER}={BUS_ORDER}")]
        )


def names(
    cards: Sequence[Card], environment: Mapping[str, str], chosen: Sequence[int] | None = None
) -> tuple[Names, ...]:
    """The NVML index, UUID, bus id, CUDA ordinal and TensorFlow device of every card and instance.

    A table: find the row by the name you have, and read the name you need.

    Args:
        cards: the cards of the machine.
        environment: where CUDA looks for its settings.
        chosen: the CUDA ordinals that TensorFlow was told to use, ascending; all by default.

    Example:
        >>> cards = [Card(i, f"GPU-{i}a", f"00000000:0{i}:00.0", "a card", 2**34) for i in range(3)]
        >>> rows = names(cards, {"CUDA_VISIBLE_DEVICES": "2,0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"})
        >>> [(row.index, row.ordinal, row.device) for row in rows]
        [(0, 1, '/device:GPU:1'), (1, None, None), (2, 0, '/device:GPU:0')]
        >>> next(row.uuid for row in rows if row.device == "/device:GPU:0")
        'GPU-2a'
    """
    parts = [(card, part) for card in cards for part in (card.instances if card.mig else (None,))]
    listed = environment.get(VISIBLE)
    allowed = parts if listed is None else _listed(cards, listed)
    seen = _enumerated(cards, environment)
    ordinals = range(len(seen)) if _order_is_known(cards, environment) else ()
    ordinal = {seen[at]: at for at in ordinals}
    used = list(ordinals if chosen is None else chosen)
    rows = []
    for card, part in parts:
        at = ordinal.get((card, part))
        rows.append(
            Names(
                index=card.index,
                uuid=part.uuid if part else card.uuid,
                bus_id=card.bus_id,
                ordinal=at,
                device=f"/device:GPU:{used.index(at)}" if at is not None and at in used else None,
                visible=(card, part) in seen,
                listed=(card, part) in allowed,
                instance=part,
            )
        )
    return tuple(rows)


def visible(cards: Sequence[Card], environment: Mapping[str, str]) -> tuple[Card, ...]:
    """The cards that this process may use, in the order in which CUDA and TensorFlow number them.

    A MIG instance comes as a card with its own UUID and memory.
    """
    return tuple(
        replace(card, uuid=part.uuid, memory=part.memory, processes=part.processes) if part else card
        for card, part in _enumerated(cards, environment)
    )


def _order_is_known(cards: Sequence[Card], environment: Mapping[str, str]) -> bool:
    """Without bus order CUDA puts the fastest card first, and does not say how it ranks the others.

    Equal cards stay in bus order, and a list of UUIDs is an order of its own.
    """
    listed = environment.get(VISIBLE, "").strip()
    by_uuid = listed.startswith(("GPU-", "MIG-"))
    return environment.get(ORDER) == BUS_ORDER or by_uuid or len({card.name for card in cards}) <= 1


def _enumerated(cards: Sequence[Card], environment: Mapping[str, str]) -> list[tuple[Card, Instance | None]]:
    """What CUDA sees, in its order.

    Of cards in MIG mode CUDA enumerates one instance, and then no other card beside it.
    """
    listed = environment.get(VISIBLE)
    seen = [_first(card) for card in cards] if listed is None else _listed(cards, listed)
    there = [entry for entry in seen if entry is not None]
    return next(([entry] for entry in there if entry[1] is not None), there)


def _listed(cards: Sequence[Card], listed: str) -> list[tuple[Card, Instance | None] | None]:
    """The entries of `CUDA_VISIBLE_DEVICES`, read as CUDA reads them.

    All are indices, or all are (prefixes of) UUIDs, as the first is. The first entry that names
    nothing, or more than one card, ends the list; a repeated one empties it.
    """
    entries = [entry.strip() for entry in listed.split(",")]
    form = next((start for start in ("GPU-", "MIG-") if entries[0].startswith(start)), "")
    chosen: list[tuple[Card, Instance | None] | None] = []
    for entry in entries:
        if form:
            named = _by_uuid(cards, entry) if entry.startswith(form) else []
        else:
            number = re.match(r"[0-9]+", entry)  # CUDA stops reading at what is no digit
            named = [_first(card) for card in cards if number and card.index == int(number[0])]
        if len(named) != 1:
            break
        if named[0] in chosen:
            return []
        chosen.append(named[0])
    return chosen


def _by_uuid(cards: Sequence[Card], entry: str) -> list[tuple[Card, Instance | None] | None]:
    parts = [(card, part) for card in cards for part in card.instances]
    # Drivers before R470 name an instance by its card and two numbers.
    old = re.fullmatch(r"MIG-(GPU-[^/]+)/([0-9]+)/([0-9]+)", entry)
    if old:
        place = (int(old[2]), int(old[3]))
        return [
            (card, part)
            for card, part in parts
            if card.uuid.startswith(old[1]) and (part.gpu_instance, part.compute_instance) == place
        ]
    if entry.startswith("MIG-"):
        return [(card, part) for card, part in parts if part.uuid.startswith(entry)]
    return [_first(card) for card in cards if card.uuid.startswith(entry)]


def _first(card: Card) -> tuple[Card, Instance | None] | None:
    """What CUDA takes when it is told of a card: in MIG mode its first instance, if it has one."""
    if card.mig:
        return (card, card.instances[0]) if card.instances else None
    return (card, None)
