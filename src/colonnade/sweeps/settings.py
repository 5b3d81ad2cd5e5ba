"""What a sweep is asked to do, and everything that is wrong with it, before anything starts."""

import os
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from optuna.distributions import BaseDistribution

from colonnade.errors import Problem, check, whole
from colonnade.fleet.launch import pool_of, seconds, waits_for_itself
from colonnade.fleet.lease import is_share
from colonnade.sweeps import search
from colonnade.sweeps.command import Command
from colonnade.sweeps.search import Search
from colonnade.sweeps.slots.slot import SlotLease

FOLDER = "studies"
STUDY_NAME = re.compile(r"\w[\w.-]*")


@dataclass(frozen=True)
class SweepSettings:
    """As the command line has them; `objective` or `command` is set, and not both."""

    objective: str | None = None
    command: tuple[str, ...] = ()
    trials: int | None = None
    cards: int = 1
    memory: str = "1"
    virtual: int | None = None
    direction: str = "minimize"
    timeout: str | None = None
    study: str | None = None
    storage: str | None = None
    sampler: str | None = None
    pruner: str = "median"
    seed: int | None = None
    grid: tuple[str, ...] = ()
    range: tuple[str, ...] = ()
    retries: int = 0
    stall: str | None = None
    reuse: bool = False
    share: bool = False
    folder: Path | None = None
    leases: Path | None = None

    @property
    def label(self) -> str:
        """What is tried, the same on every machine."""
        if self.objective is None:
            return Command(self.command).label
        place, _, function = self.objective.rpartition(":")
        return f"{Path(place).name}:{function}"

    @property
    def name(self) -> str:
        """The study's name; by default that of what is tried."""
        if self.study is not None:
            return self.study
        if self.objective is not None:
            return re.sub(r"\W+", "-", self.label.replace(".py:", ":"))
        if not self.command:
            return "sweep"
        named = [Path(argument).stem for argument in self.command if not argument.startswith("-")]
        script = next((name for name in named[1:2] if named[0].startswith("python")), named[0])
        return re.sub(r"[^\w.-]+", "-", script).strip("-.") or "sweep"

    @property
    def path(self) -> Path:
        """The study's folder."""
        return ((self.folder or Path(FOLDER)) / self.name).expanduser().absolute()


@dataclass(frozen=True)
class CheckedSweep:
    """Settings that can be used, and what follows from them."""

    settings: SweepSettings
    search: Search
    share: SlotLease
    most: int  # slots at a time
    timeout: float | None
    stall: float | None
    identity: dict[str, Any]  # what makes it the same study when the command is given again


def checked(settings: SweepSettings) -> CheckedSweep:
    """The settings, if they can be used; else one error that lists everything that is wrong."""
    check("sweep", _platform_problems(sys.platform))
    given = settings.sampler
    values, bad_grid = search.grid(settings.grid)
    space, bad_ranges = search.ranges(settings.range)
    virtual = settings.virtual
    if virtual is None and not pool_of(1, None).slots:
        virtual = len(os.sched_getaffinity(0))  # without cards: a virtual one for each core
    pool = pool_of(settings.cards, virtual)
    timeout, bad_timeout = _span("--timeout", settings.timeout, "s")
    stall, bad_stall = _span("--stall", settings.stall, "m")
    plain_grid = bool(values) and not space
    check(
        "sweep",
        [
            *_what_problems(settings, [*values, *space]),
            *bad_grid,
            *bad_ranges,
            *search.search_problems(given or "random", settings.pruner),
            *_card_problems(settings, len(pool.slots), virtual),
            *_number_problems(settings, plain_grid),
            *bad_timeout,
            *bad_stall,
        ],
    )
    check("sweep", waits_for_itself(pool, settings.cards, settings.memory, settings.leases))
    kinds: dict[str, BaseDistribution] = search.categories(values)
    if plain_grid:
        combinations = search.combinations(values, given or "grid", settings.seed)[: settings.trials]
        chosen = Search(len(combinations), "random", settings.seed, {}, combinations, kinds)
    else:
        assert settings.trials is not None, "checked above"
        usual = "tpe" if settings.objective is not None else "random"
        chosen = Search(settings.trials, given or usual, settings.seed, {**kinds, **space})
    each = len(pool.slots) // settings.cards * int(1 / Fraction(settings.memory))
    share = SlotLease(settings.cards, settings.memory, virtual, settings.leases, settings.share)
    identity = {"what": settings.label, "grid": values, "range": list(settings.range)}
    return CheckedSweep(settings, chosen, share, each, timeout, stall, identity)


def _platform_problems(platform: str) -> Iterator[Problem]:
    if platform != "linux":
        yield Problem("platform", platform, "sweep needs Linux to end what it started", "Use Optuna alone")


def _what_problems(settings: SweepSettings, parameters: list[str]) -> Iterator[Problem]:
    if (settings.objective is None) == (not settings.command):
        both = "an objective and a command" if settings.command else "neither an objective nor a command"
        fix = "Write module:function, or --grid NAME=VALUES -- PROGRAM ARGUMENTS"
        yield Problem("objective", settings.objective, f"there is {both}", fix)
    elif settings.objective is not None:
        for option in ("grid", "range"):
            if getattr(settings, option):
                rule = "an objective asks for its parameters itself, with trial.suggest_..."
                yield Problem(f"--{option}", getattr(settings, option)[0], rule, "Leave it out")
    else:
        yield from _command_problems(settings, parameters)
    if not STUDY_NAME.fullmatch(settings.name):
        rule = "must be letters, digits, _, - and ., for it names a folder"
        yield Problem("--study", settings.name, rule, "Try --study rates")


def _command_problems(settings: SweepSettings, parameters: list[str]) -> Iterator[Problem]:
    command = Command(settings.command)
    yield from command.problems(parameters)
    program = settings.command[0]
    if "{" not in program and not shutil.which(program):
        yield Problem("command", program, "there is no such program that can be executed", "Check its name")
    if not parameters:
        rule = "there is nothing to try"
        yield Problem("--grid", "", rule, "Add --grid rate=0.1,0.01 or --range rate=0.001..0.1:log")
    if settings.reuse:
        rule = "a program is started for every trial"
        yield Problem("--reuse", True, rule, "Leave it out, or write an objective in Python")


def _card_problems(settings: SweepSettings, have: int, virtual: int | None) -> Iterator[Problem]:
    if virtual is not None and virtual < 1:
        yield Problem("--virtual", virtual, "must be a whole number from 1 up", "Try --virtual 4")
    elif settings.cards < 1:
        yield Problem("--cards", settings.cards, "must be a whole number from 1 up", "Try --cards 1")
    elif settings.cards > have:
        kind = "cards" if settings.virtual is None and virtual is None else "virtual cards"
        rule = f"a trial would need more than there are here: {have} {kind}"
        yield Problem("--cards", settings.cards, rule, f"Ask for {have} or fewer, or try --virtual N")
    if not is_share(settings.memory):
        rule = "must be above 0 and at most 1, the share of a card"
        yield Problem("--memory", settings.memory, rule, "Try 0.5")


def _number_problems(settings: SweepSettings, plain_grid: bool) -> Iterator[Problem]:
    if settings.trials is None and not plain_grid:
        yield Problem("--trials", None, "must say how many trials there are to be in all", "Try --trials 50")
    elif settings.trials is not None:
        yield from whole("--trials", settings.trials, 1, like=50)
    yield from whole("--retries", settings.retries, 0, like=1)
    if settings.seed is not None:
        yield from whole("--seed", settings.seed, 0, like=1)
    if settings.direction not in ("minimize", "maximize"):
        yield Problem("--direction", settings.direction, "must be minimize or maximize", "Try maximize")


def _span(option: str, text: str | None, unit: str) -> tuple[float | None, list[Problem]]:
    """Seconds; a number alone counts in `unit`."""
    if text is None:
        return None, []
    try:
        span = seconds(f"{text}{unit}" if text.isdecimal() else text)
    except ValueError:
        span = 0.0
    if span > 0:
        return span, []
    rule = "must be a time span above 0 with units s, m, h or d"
    return None, [Problem(option, text, rule, "Try 90s or 1h30m")]
