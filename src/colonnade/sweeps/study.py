"""Opens a study for a sweep, runs the sweep, and says what came of it."""

import asyncio
import contextlib
import json
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import optuna
from optuna.study import StudyDirection

from colonnade.describe.whole_file import write_whole
from colonnade.errors import InvalidArgument, Problem, check
from colonnade.sweeps.board import Board, Unwatched, Watcher
from colonnade.sweeps.command import Command
from colonnade.sweeps.objective import check_importable
from colonnade.sweeps.owner import SweepOwner, alone_with
from colonnade.sweeps.search import pruner
from colonnade.sweeps.settings import CheckedSweep, SweepSettings, checked
from colonnade.sweeps.slots.attempt import CommandRunner, ObjectiveRunner, Runner, Stall
from colonnade.sweeps.slots.slot import Slot
from colonnade.sweeps.storage import Persistent, open_storage
from colonnade.sweeps.sweeper import Sweeper
from colonnade.sweeps.trial_book import TrialBook

IDENTITY = "colonnade:sweep"  # the attribute of a study that says what it tries
STUDY_FILE = "study.json"  # says in a study's folder where its storage is
FIRST = 30.0  # seconds that a storage may be away at the very beginning
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class Swept:
    """What a sweep leaves: its study, the folder, and why it ended before its time, if it did."""

    study: optuna.Study
    folder: Path
    board: Board
    settings: SweepSettings
    stopped_by: str = ""


def conduct(settings: SweepSettings, watcher: Watcher | None = None) -> Swept:
    """Run a sweep to its end, or until Ctrl-C or SIGTERM; the same again goes on where it was."""
    watcher = watcher or Unwatched()
    sweep = checked(settings)
    # What can be wrong comes first: then nothing is left behind by a mistake.
    if settings.objective is not None:
        check_importable(settings.objective)
    with _quiet_optuna():
        storage = open_storage(settings.storage, settings.path)
        board = Board(settings.name, sweep.search.trials, settings.direction == "maximize")
        with SweepOwner(settings.path) as owner:
            with alone_with(settings.path):
                study = Persistent(watcher.noted, FIRST).call(_study, sweep, storage)
            _write_study_file(settings)
            shared = settings.storage is not None
            book = TrialBook(
                study, storage, settings.path, owner, sweep.search, retries=settings.retries, shared=shared
            )
            sweeper = Sweeper(book, board, owner, sweep.share, sweep.most, _runners(sweep), watcher)
            _run(sweeper, sweep.timeout)
    return Swept(study, settings.path, board, settings, sweeper.stopped_by)


@contextlib.contextmanager
def _quiet_optuna() -> Iterator[None]:
    """Without its notes on every trial, which are shown in another way, and on what is experimental in it."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(before)


def open_study(folder: Path) -> optuna.Study:
    """The study in a folder, to look at."""
    fix = "Name a folder that colonnade sweep has made, such as studies/NAME"
    try:
        says = json.loads((folder / STUDY_FILE).read_text())
        name, url = says["study"], says["storage"]
        if not isinstance(name, str) or not isinstance(url, str | None):
            raise TypeError("a name and a storage are texts")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        rule = f"is not the folder of a study ({type(error).__name__}: {error})"
        raise InvalidArgument("report", [Problem("STUDY", str(folder), rule, fix)]) from None
    try:
        return optuna.load_study(study_name=name, storage=open_storage(url, folder))
    except KeyError:
        rule = f"is the folder of a study {name!r}, which its storage does not have"
        raise InvalidArgument("report", [Problem("STUDY", str(folder), rule, fix)]) from None


def _study(sweep: CheckedSweep, storage: optuna.storages.BaseStorage) -> optuna.Study:
    """The study of this name, new or as it is; one that tries something else is not touched."""
    settings = sweep.settings
    study = optuna.create_study(
        study_name=settings.name,
        storage=storage,
        direction=StudyDirection[settings.direction.upper()],
        pruner=pruner(settings.pruner),
        load_if_exists=True,
    )
    if IDENTITY not in study.user_attrs:
        study.set_user_attr(IDENTITY, sweep.identity)
    check("sweep", _other_study(sweep, study, study.user_attrs[IDENTITY]))
    return study


def _other_study(sweep: CheckedSweep, study: optuna.Study, known: object) -> Iterator[Problem]:
    fix = "Give this one another name, such as --study " + sweep.settings.name + "-2"
    if known != sweep.identity:
        rule = f"there is a study of that name that tries something else: {json.dumps(known)}"
        yield Problem("--study", sweep.settings.name, rule, fix)
    if study.direction.name.lower() != sweep.settings.direction:
        rule = f"the study of that name is to {study.direction.name.lower()} its value"
        yield Problem("--direction", sweep.settings.direction, rule, fix)


def _write_study_file(settings: SweepSettings) -> None:
    """For who looks at the study later; closed to others, because a URL may have a password in it."""
    text = json.dumps({"study": settings.name, "storage": settings.storage}, indent=2) + "\n"
    write_whole(settings.path / STUDY_FILE, text, 0o600)


def _runners(sweep: CheckedSweep) -> Callable[[Sweeper, Slot], Runner]:
    """Makes what runs trials in a slot."""
    settings, stall = sweep.settings, Stall(sweep.stall)
    study = {"study": settings.name, "storage": settings.storage}

    def runner(sweeper: Sweeper, slot: Slot) -> Runner:
        if settings.objective is None:
            return CommandRunner(slot, Command(settings.command), stall)
        return ObjectiveRunner(slot, settings.objective, stall, sweeper.call, study, reuse=settings.reuse)

    return runner


def _run(sweeper: Sweeper, timeout: float | None) -> None:
    """In this thread; or, where a loop runs in it already, as in a notebook, in one of its own."""

    async def run() -> None:
        if threading.current_thread() is threading.main_thread():
            loop = asyncio.get_running_loop()
            for number in SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
                    loop.add_signal_handler(number, sweeper.stop, number.name)
        await sweeper.run(timeout)

    if not _has_loop():
        asyncio.run(run())
        return
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, run()).result()


def _has_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
