"""The manifest of a saved step: what it holds, with checksums that show a damaged byte.

A saved step is a directory: TensorFlow's checkpoint files, `manifest.json` with the size and SHA-256 of
each of them, and `manifest.json.sha256`, which guards the manifest itself in the way of `sha256sum -c`.
"""

import contextlib
import errno
import hashlib
import json
import math
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime
from pathlib import Path
from typing import Any

from colonnade.errors import is_whole

MANIFEST = "manifest.json"
SEAL = "manifest.json.sha256"
FORMAT = 2
LARGEST = 2**28  # bytes of a manifest that are read
# A file of a saved step is named by letters, digits, dots and dashes: no name leads out of its directory.
PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK


# What the file system says of a file that it has lost; any other error may be gone the next time.
LOST = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENXIO, errno.EIO, errno.EUCLEAN)
# Without these a step holds nothing to go on from.
NEEDED = ("values.index", "values.data-", "data.index", "data.data-")


class Flaw(Exception):
    """What is wrong with a saved step; never leaves the package as such."""


class Unread(Exception):
    """Why nothing can be said of a saved step, which may be whole; never leaves the package as such."""


@dataclass(frozen=True)
class File:
    """A file as it was written."""

    size: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """All that is known of a saved step without reading its tensors.

    `fit` numbers the calls of `fit` with this directory in the program, and `begin` is the step at which
    this one began, so that the same program finds its place again.
    """

    step: int
    examples: int
    skipped: int
    fit: int
    begin: int
    stopped: bool  # a callback ended the fit
    loss: float
    metrics: dict[str, float]
    schedule: dict[str, Any]  # the optimizer's iterations, and its learning rate where that is a variable
    generators: dict[str, list[list[int]]]  # states of random generators (seed and counter), by replica
    data: dict[str, Any]
    devices: int
    mode: dict[str, str]
    versions: dict[str, str]
    written: str
    staleness: dict[str, int] = field(default_factory=dict)  # how many gradients of each age were applied
    files: dict[str, File] = field(default_factory=dict)
    format: int = FORMAT

    def to_json(self) -> str:
        return json.dumps(_finite(asdict(self)), indent=1, allow_nan=False)

    @classmethod
    def from_json(cls, text: str | bytes) -> "Manifest":
        """Read a manifest back; raises `Flaw` if it is none that this version can read."""
        try:
            plain = json.loads(text)
            if plain["format"] != FORMAT:
                said = f"it has format {plain['format']!r}, and this version of Colonnade reads {FORMAT}"
                raise Unread(said) if is_whole(plain["format"]) else Flaw(said)
            known = {entry.name for entry in fields(cls)}
            files = {str(name): File(**facts) for name, facts in plain.pop("files").items()}
            plain["loss"] = _number(plain["loss"])
            plain["metrics"] = {name: _number(value) for name, value in plain["metrics"].items()}
            manifest = cls(**{k: v for k, v in plain.items() if k in known}, files=files)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise Flaw(f"{MANIFEST} is not a manifest ({type(error).__name__}: {error})") from None
        counts = (manifest.step, manifest.examples, manifest.skipped, manifest.fit, manifest.begin)
        if not all(is_whole(count, 0) for count in counts):
            raise Flaw(f"{MANIFEST} has a count that is not a whole number")
        return manifest

    def odd(self) -> Iterator[str]:
        """The fields whose values cannot be; only those by which a training goes on, or is listed."""
        data = self.data if isinstance(self.data, dict) else {}
        passes, before = data.get("passes"), data.get("before")
        epochs = 1 if data.get("epochs") is None else data["epochs"]
        fits = {
            "fit": self.fit >= 1,
            "begin": self.begin <= self.step,
            "stopped": isinstance(self.stopped, bool),
            "devices": is_whole(self.devices, 1),
            "mode": _texts(self.mode),
            "versions": _texts(self.versions),
            "written": _moment(self.written),
            "staleness": isinstance(self.staleness, dict)
            and all(age.isdecimal() and is_whole(count, 0) for age, count in self.staleness.items()),
            "data": isinstance(data.get("kind"), str)
            and isinstance(data.get("spec"), str)
            and is_whole(data.get("cardinality"))
            and is_whole(epochs, 0)
            and is_whole(passes, 0)
            and passes <= epochs
            and data.get("batches") == self.step - self.begin
            and isinstance(before, list)
            and len(before) == self.fit - 1
            and all(is_whole(count, 0) for count in before),
        }
        return (name for name, fit in fits.items() if not fit)


def _texts(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(one, str) for one in value.values())


def _moment(value: Any) -> bool:
    try:
        return datetime.fromisoformat(value).tzinfo is not None
    except (TypeError, ValueError):
        return False


def seal(manifest: bytes) -> bytes:
    """What belongs into the file that guards a manifest."""
    return f"{hashlib.sha256(manifest).hexdigest()}  {MANIFEST}\n".encode()


def examine(folder: Path, *, thorough: bool) -> Manifest:
    """The manifest of a saved step, or `Flaw`; thorough reads every byte of every file."""
    if folder.is_symlink():
        raise Flaw("it is a link, and links are not followed")
    text = _read(folder / MANIFEST)
    if _read(folder / SEAL) != seal(text):
        raise Flaw(f"{MANIFEST} does not have the checksum in {SEAL}")
    manifest = Manifest.from_json(text)
    for name in manifest.files:
        if not PLAIN.fullmatch(name):
            raise Flaw(f"{MANIFEST} names {name!r}, which is not a plain file name")
    with _judged(folder.name):
        there = set(os.listdir(folder)) - {MANIFEST, SEAL}
    for name in sorted(there - manifest.files.keys()):
        raise Flaw(f"{name} is there, and {MANIFEST} does not name it")
    for needed in NEEDED:
        if not any(name.startswith(needed) for name in manifest.files):
            raise Flaw(f"{MANIFEST} names no {needed}")
    for name, file in manifest.files.items():
        _check(folder, name, file, thorough=thorough)
    return manifest


def _check(folder: Path, name: str, file: File, *, thorough: bool) -> None:
    descriptor = _open(folder / name)
    with open(descriptor, "rb") as opened:
        size = os.fstat(descriptor).st_size
        if size != file.size:
            raise Flaw(f"{name} has {size} bytes instead of {file.size}")
        with _judged(name):
            if thorough and hashlib.file_digest(opened, "sha256").hexdigest() != file.sha256:
                raise Flaw(f"{name} does not have its checksum")


def _read(path: Path) -> bytes:
    with open(_open(path), "rb") as opened, _judged(path.name):
        return opened.read(LARGEST)


@contextlib.contextmanager
def _judged(name: str) -> Iterator[None]:
    """A file that cannot be read is a flaw if it is lost; if not, nothing is known of it."""
    try:
        yield
    except FileNotFoundError:
        raise Flaw(f"{name} is missing") from None
    except OSError as error:
        kind = Flaw if error.errno in LOST else Unread
        raise kind(f"{name} cannot be read ({error.strerror})") from None


def _open(path: Path) -> int:
    with _judged(path.name):
        descriptor = os.open(path, READ)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise Flaw(f"{path.name} is not a file")
    return descriptor


def _finite(value: Any) -> Any:
    """JSON has no word for what is not a finite number: null stands for it."""
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


def digest(path: Path) -> File:
    """The size and checksum of a file."""
    with path.open("rb") as opened:
        return File(os.fstat(opened.fileno()).st_size, hashlib.file_digest(opened, "sha256").hexdigest())
