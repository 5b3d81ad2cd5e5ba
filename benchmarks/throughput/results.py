"""What was measured, as JSON: contests by model and number of devices, settings, and who was lost."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from contest import Contest, Spread

MODELS = ("polynomial", "mlp", "cnn", "cifar", "lstm", "embedding", "transformer")
LARGER = MODELS[1:]
# In the order of tables: what each contender is.
NAMES = {
    "colonnade": "Colonnade",
    "mirrored": "MirroredStrategy",
    "towers": "towers by hand",
    "session": "compat.v1 program",
    "ddp": "torch DDP, gloo",
    "sharded": "JAX, batch sharded",
    "single": "TensorFlow, one device",
    "torch": "torch, one process",
    "jax": "JAX, one device",
}
ALONE = ("single", "torch", "jax")  # one device with all cores


@dataclass
class Results:
    """All contests that were held; a contest held again takes the place of the one before."""

    contests: dict[str, dict[str, list[dict[str, Any]]]] = field(default_factory=dict)
    settings: dict[str, dict[str, str]] = field(default_factory=dict)
    lost: dict[str, dict[str, str]] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path) -> "Results":
        return cls(**json.loads(path.read_text())) if path.exists() else cls()

    def save(self, path: Path) -> None:
        stored = {
            "machine": self.machine,
            "settings": dict(sorted(self.settings.items())),
            "lost": dict(sorted(self.lost.items())),
            "contests": dict(sorted(self.contests.items())),
        }
        path.write_text(json.dumps(stored, indent=1) + "\n")

    def contest(self, name: str) -> Contest:
        """Of a name such as `cnn 2`; empty if it was not held."""
        held = Contest()
        held.rounds = self.contests.get(name, {})
        return held

    def steps(self, model: str, devices: int, contender: str) -> list[float] | None:
        """Milliseconds per step, round by round; None where it did not take part."""
        rounds = self.contests.get(f"{model} {devices}", {}).get(contender)
        return [figures["step"] for figures in rounds] if rounds else None

    def speedups(self, devices: int, contender: str) -> dict[str, list[float]]:
        """How many times as many examples per second as that contender, by model and round."""
        found = {}
        for model in MODELS:
            ours, theirs = (self.steps(model, devices, name) for name in ("colonnade", contender))
            if ours and theirs:
                found[model] = [b / a for a, b in zip(ours, theirs, strict=False)]
        return found

    def figure(self, model: str, devices: int, contender: str, figure: str) -> float | None:
        """The median of `first` or `memory`, which a process measures once."""
        rounds = self.contests.get(f"{model} {devices}", {}).get(contender, [])
        known = [figures[figure] for figures in rounds if figure in figures]
        return Spread.of(known).median if known else None
