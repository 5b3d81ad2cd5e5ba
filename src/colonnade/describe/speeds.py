"""What a link or a card can do where nobody has measured it: published figures from `speeds.csv`.

Every number there carries its source. They are defaults: a measured `Link` takes their place.
"""

import csv
import re
from functools import cache
from importlib.resources import files

# From the fastest path to the slowest, as `nvidia-smi topo -m` ranks them. Two are ours: MEM for
# devices that share one memory, so that nothing is copied, and NET for another machine.
LEVELS = ("X", "MEM", "NV", "PIX", "PXB", "PHB", "NODE", "SYS", "NET")

# What comes with a card's model in its name and does not make it another model. "Ti" or "Laptop"
# is not among them: such a card is not listed, and has no figures rather than wrong ones.
_BESIDES = re.compile(r"NVIDIA|Tesla|GeForce|SXM[0-9]*|PCIE|HBM[0-9]e?|[0-9]+GB", re.IGNORECASE)

_UNITS = {"GB/s": 1e9, "us": 1e-6, "TFLOP/s": 1e12, "generation": 1.0, "links": 1.0, "x": 1.0}


def level(kind: str) -> str:
    """The level of a link's kind: `NV4` is an `NV`; an empty string where there is no such kind.

    >>> level("NV4"), level("PIX"), level("NVX")
    ('NV', 'PIX', '')
    """
    if re.fullmatch(r"NV[1-9][0-9]?", kind):
        return "NV"
    return kind if kind in LEVELS and kind != "NV" else ""


def suggests_peer(kind: str) -> bool:
    """Whether cards joined like this usually reach each other directly.

    A guess for want of a better: across host bridges and sockets peer access mostly fails, and
    some cards have none at all. `nvidia-smi topo -p2p r` knows.

    >>> suggests_peer("PIX"), suggests_peer("SYS")
    (True, False)
    """
    return LEVELS.index(level(kind)) <= LEVELS.index("PHB")


def bandwidth(kind: str, peer: bool, card: str = "") -> float:
    """Bytes per second in one direction over a link of this kind between two such cards.

    >>> bandwidth("NV2", True, "Tesla V100-SXM2-16GB") / 1e9
    40.0
    >>> bandwidth("PHB", False, "NVIDIA GeForce RTX 4090") / 1e9
    18.48
    """
    if level(kind) in ("X", "MEM"):
        return float("inf")
    if level(kind) == "NET":
        return figure("net", "bandwidth")
    if level(kind) == "NV" and peer:
        each = _of_card(card, "nvlink") or figure("nvlink", "bandwidth")
        return int(kind[2:]) * each
    generation = int(_of_card(card, "pcie") or 3)
    through = figure(f"pcie {generation}", "bandwidth")
    if level(kind) == "SYS":
        through = min(through, figure(f"smp {generation}", "bandwidth"))
    return through if peer else through * figure("host", "factor")


def latency(kind: str, peer: bool) -> float:
    """Seconds until the first byte arrives.

    >>> latency("PIX", True), latency("PIX", False)
    (6.3e-06, 1.6e-05)
    """
    if level(kind) in ("X", "MEM"):
        return 0.0
    if level(kind) == "NET":
        return figure("net", "latency")
    if not peer:
        return figure("host", "latency")
    return figure("nvlink" if level(kind) == "NV" else "pcie", "latency")


def flops(card: str) -> float | None:
    """Peak FLOP/s of a card in float32, by the name that its driver gives it; None if not listed.

    >>> flops("NVIDIA A100-SXM4-80GB")
    19500000000000.0
    >>> flops("Some other card") is None
    True
    """
    return _of_card(card, "fp32")


def of_card(card: str, field: str) -> float | None:
    """Another figure of a card, if it is listed: `fp16` (peak FLOP/s), `memory` (bytes/s), `nvlinks`.

    >>> of_card("Tesla V100-SXM2-16GB", "fp16"), of_card("Tesla V100-SXM2-16GB", "nvlinks")
    (125000000000000.0, 6.0)
    """
    return _of_card(card, field)


def figure(thing: str, field: str) -> float:
    """One number of the table, in bytes, seconds and FLOPs."""
    return _table()[thing, field]


@cache
def _table() -> dict[tuple[str, str], float]:
    with (files("colonnade.describe") / "speeds.csv").open(encoding="utf-8") as file:
        return {(r["thing"], r["field"]): float(r["value"]) * _UNITS[r["unit"]] for r in csv.DictReader(file)}


@cache
def _of_card(name: str, field: str) -> float | None:
    words = [word.upper() for word in re.split(r"[\s-]+", name) if word]
    matches = [
        (len(model), value)
        for (thing, at), value in _table().items()
        if at == field and (model := thing.upper().split()) and _is_model(model, words)
    ]
    return max(matches)[1] if matches else None


def _is_model(model: list[str], words: list[str]) -> bool:
    rest = [word for word in words if word not in model]
    return set(model) <= set(words) and all(_BESIDES.fullmatch(word) for word in rest)
