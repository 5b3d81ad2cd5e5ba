"""The environments of torch and JAX: where they are, and whether they have the pinned versions."""

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
ASK = "import importlib.metadata as m, json; print(json.dumps({{n: m.version(n) for n in {0!r}}}))"


class WrongPeer(Exception):
    """An environment has other versions than this contest is held with."""


@dataclass(frozen=True)
class Peer:
    """Another framework, in an environment of its own."""

    name: str
    folder: Path
    pins: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    def wanted(self) -> dict[str, str]:
        """Versions by package."""
        lines = (line.strip() for line in self.pins.read_text().splitlines())
        return dict(line.split("==") for line in lines if line and not line.startswith("#"))

    def missing(self) -> bool:
        """Whether there is no environment; one with other versions raises `WrongPeer`."""
        if not self.python.exists():
            return True
        wanted = self.wanted()
        done = subprocess.run(
            [self.python, "-c", ASK.format(sorted(wanted))], capture_output=True, text=True, timeout=60
        )
        if done.returncode:
            what = done.stderr.strip().splitlines()[-1]
            raise WrongPeer(f"{self.folder} is not the environment of {self.name}: {what}. {self._mend()}")
        found = {name: text.partition("+")[0] for name, text in json.loads(done.stdout).items()}
        if found != wanted:
            told = ", ".join(f"{n} {found[n]} (wanted: {wanted[n]})" for n in wanted if found[n] != wanted[n])
            raise WrongPeer(f"{self.folder} has {told}. {self._mend()}")
        return False

    def _mend(self) -> str:
        return f"Make it anew: rm -r {self.folder.name} && make bench-peers"


PEERS = {name: Peer(name, ROOT / f".venv-{name}", HERE / f"{name}.txt") for name in ("torch", "jax")}
