"""Opens the storage of a study, and keeps asking while it does not answer.

A storage is away when its server is restarted, its disk is full or its folder is unmounted. Trials go on
meanwhile; whatever has to be written waits here, in the one thread that talks to the storage.
"""

import importlib
import importlib.util
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

import optuna
from optuna.exceptions import ExperimentalWarning
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalRedisBackend
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from colonnade.errors import ColonnadeError, InvalidArgument, Problem
from colonnade.sweeps.journal import KernelLockedJournal

JOURNAL = "journal.log"
CONNECT = 10  # seconds in which a server must answer at first
PATIENCE = 600.0  # seconds that a storage may be away
TABLES = 20  # tries to open a database whose tables others make at the same moment
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0  # seconds between two tries
QUIET = 0.5  # seconds before anything is said of it
SCHEMES = ("sqlite", "postgresql", "mysql", "redis", "rediss", "unix")

P = ParamSpec("P")
T = TypeVar("T")


def open_storage(url: str | None, folder: Path) -> BaseStorage:
    """The storage that a URL names, or the journal in the study's folder; an error if it does not answer."""
    try:
        return _open(url, folder)
    except InvalidArgument:
        raise
    except (ImportError, ValueError, OSError) as error:
        raise _unusable(url or str(folder / JOURNAL), f"cannot be opened ({_said(error)})") from None
    except away_errors() as error:
        raise _unusable(url or str(folder / JOURNAL), f"does not answer ({_said(error)})") from None


def _open(url: str | None, folder: Path) -> BaseStorage:
    if url is None:
        folder.mkdir(parents=True, exist_ok=True)
        return JournalStorage(KernelLockedJournal(str(folder / JOURNAL)))
    scheme, separator, rest = url.partition("://")
    if not separator:
        path = Path(url).expanduser()
        if path.suffix != ".log" or not path.parent.is_dir():
            rule = "must be a URL, or a journal file (.log) in a folder that exists"
            raise _unusable(url, rule)
        return JournalStorage(KernelLockedJournal(str(path)))
    kind = scheme.partition("+")[0]
    if kind not in SCHEMES:
        raise _unusable(url, f"{scheme}:// is no storage that Optuna knows")
    if kind in ("redis", "rediss", "unix"):
        joint = "&" if "?" in rest else "?"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)  # as docs/sweeps.md says of it
            backend = JournalRedisBackend(f"{url}{joint}socket_connect_timeout={CONNECT}")
        journal = JournalStorage(backend)
        journal.get_all_studies()
        return journal
    return _database(_with_driver(url), _connecting(kind))


def _database(url: str, connecting: dict[str, int]) -> RDBStorage:
    """A database; where another machine makes the tables at the same moment, they are there the next time."""
    for left in range(TABLES, -1, -1):
        try:
            return RDBStorage(url, engine_kwargs={"pool_pre_ping": True, "connect_args": dict(connecting)})
        except SQLAlchemyError as error:
            if not left or not (isinstance(error, IntegrityError) or "already exists" in str(error)):
                raise
            time.sleep(FIRST_PAUSE)
    raise AssertionError("the last try returns or raises")


def _said(error: Exception) -> str:
    """The first line of an error, or of what caused it, where the error only says where to look."""
    cause = error.__cause__ or error
    return str(cause).strip().partition("\n")[0].rstrip(".") or type(cause).__name__


def _connecting(kind: str) -> dict[str, int]:
    if kind == "sqlite":
        return {"timeout": 60}  # while another sweep writes
    return {"connect_timeout": CONNECT}


def _with_driver(url: str) -> str:
    """SQLAlchemy's first choice for PostgreSQL is a driver that may not be the one installed."""
    plain = url.startswith("postgresql://")
    if plain and importlib.util.find_spec("psycopg") and not importlib.util.find_spec("psycopg2"):
        return url.replace("postgresql://", "postgresql+psycopg://", 1)
    return url


def _unusable(url: str, rule: str) -> InvalidArgument:
    fix = "Write sqlite:///FILE, postgresql://USER@HOST/NAME or redis://HOST, or leave it out"
    return InvalidArgument("sweep", [Problem("--storage", without_password(url), rule, fix)])


def without_password(url: str) -> str:
    """A URL as it may be shown."""
    scheme, separator, rest = url.partition("://")
    who, at, where = rest.rpartition("@")
    return f"{scheme}{separator}{who.partition(':')[0]}{at}{where}" if at else url


def away_errors() -> tuple[type[Exception], ...]:
    """What is raised when a storage does not answer."""
    errors: list[type[Exception]] = [
        OSError,
        SQLAlchemyError,
        optuna.exceptions.StorageInternalError,
    ]
    if importlib.util.find_spec("redis"):
        errors.append(importlib.import_module("redis").RedisError)
    return tuple(errors)


class Persistent:
    """Calls functions that use the storage; while it is away, again and again.

    A function may have done its work before the answer was lost, so it must be one that can be called twice.
    """

    def __init__(self, tell: Callable[[str], None], patience: float = PATIENCE) -> None:
        self._tell = tell
        self._patience = patience
        self._errors = away_errors()
        self.giving_up = threading.Event()

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        since, pause = time.monotonic(), FIRST_PAUSE
        announced = False
        while True:
            try:
                answer = function(*args, **kwargs)
            except self._errors as error:
                said = _said(error)
                gone = time.monotonic() - since
                if gone > self._patience or self.giving_up.wait(pause):
                    raise ColonnadeError(
                        f"The storage has not answered for {gone:.0f} s: {said}. What runs is lost, "
                        "and is run again: give the same command when the storage is back."
                    ) from None
                if not announced and gone > QUIET:
                    self._tell(f"the storage does not answer ({said}); trials go on, trying again")
                    announced = True
                pause = min(2 * pause, LONGEST_PAUSE)
                continue
            if announced:
                self._tell(f"the storage answers again, after {time.monotonic() - since:.0f} s")
            return answer
