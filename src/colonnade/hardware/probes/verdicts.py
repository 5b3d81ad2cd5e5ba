"""What the self-test found about sums between the cards of this machine, remembered for later trainings.

A verdict holds for one driver, the same cards, and one version of TensorFlow and of Colonnade; with any other
of these the self-test has to be run again. It is in the user's cache (`XDG_CACHE_HOME`, else `~/.cache`).
Where there is none, as for a user without a home, nothing is remembered, and nothing fails for it.
"""

import json
import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import NamedTemporaryFile

import tensorflow as tf

from colonnade import __version__
from colonnade.hardware import cards as nvml
from colonnade.hardware import devices as hardware

FILE = "sums.json"


def path() -> Path:
    """Where verdicts are kept; an OSError for a user who has no home."""
    try:
        cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError as error:  # as in a container that runs under a number without a name
        raise FileNotFoundError(str(error)) from None
    return Path(cache) / "colonnade" / FILE


def recall(devices: Sequence[str]) -> dict[str, float]:
    """Seconds that each way of summing took on these cards, of those that passed; empty if not tested."""
    return _kept().get(_key(devices), {})


def remember(devices: Sequence[str], seconds: Mapping[str, float]) -> Path | None:
    """Keep the ways of summing that have passed on these cards; none of them forgets the verdict before.

    Where that cannot be written, a warning says so: what was measured is no worse for it.
    """
    kept = {**_kept(), _key(devices): dict(seconds)}
    try:
        place = path()
        place.parent.mkdir(parents=True, exist_ok=True)
        _write(place, json.dumps(kept, indent=1))
    except OSError as error:
        fix = "Set XDG_CACHE_HOME to a folder of yours, and run the self-test again"
        warnings.warn(f'not remembered: {error}. reduce="auto" does without. {fix}', stacklevel=2)
        return None
    return place


def _write(place: Path, text: str) -> None:
    """Others may read it at any time: it is there as a whole, or as it was."""
    with NamedTemporaryFile("w", dir=place.parent, delete=False, suffix=".json") as file:
        try:
            file.write(text)
            file.flush()
            os.replace(file.name, place)
        except OSError:
            os.unlink(file.name)
            raise


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
