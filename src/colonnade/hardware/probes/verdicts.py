"""What the self-test found about sums between the cards of this machine, remembered for later trainings.

A verdict holds for one driver, the same cards, and one version of TensorFlow and of Colonnade; with any other
of these the self-test has to be run again. It is in the user's cache (`XDG_CACHE_HOME`, else `~/.cache`).
"""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import NamedTemporaryFile

import tensorflow as tf

from colonnade import __version__
from colonnade.hardware import cards as nvml
from colonnade.hardware import devices as hardware

FILE = "sums.json"


def path() -> Path:
    """Where verdicts are kept."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "colonnade" / FILE


def recall(devices: Sequence[str]) -> dict[str, float]:
    """Seconds that each way of summing took on these cards, of those that passed; empty if not tested."""
    return _kept().get(_key(devices), {})


def remember(devices: Sequence[str], seconds: Mapping[str, float]) -> Path:
    """Keep the ways of summing that have passed on these cards; none of them forgets the verdict before."""
    kept = {**_kept(), _key(devices): dict(seconds)}
    place = path()
    place.parent.mkdir(parents=True, exist_ok=True)
    # Others may read it at any time: it is there as a whole, or as it was.
    with NamedTemporaryFile("w", dir=place.parent, delete=False, suffix=".json") as file:
        json.dump(kept, file, indent=1)
    os.replace(file.name, place)
    return place


def _key(devices: Sequence[str]) -> str:
    cards = [f"{card.name} {card.uuid}" for card in hardware.cards_of(devices)]
    return json.dumps([nvml.detect().driver, cards, tf.__version__, __version__])


def _kept() -> dict[str, dict[str, float]]:
    """All verdicts; a file that cannot be read holds none, and the next self-test writes it anew."""
    try:
        kept = json.loads(path().read_text())
    except (OSError, ValueError):
        return {}
    return kept if isinstance(kept, dict) else {}
