"""Runs an objective once, with given parameters, on leased cards; says how the best trial is run again."""

import json
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from colonnade.errors import InvalidArgument, Problem, check
from colonnade.fleet.launch import pool_of
from colonnade.fleet.launch import run as launch
from colonnade.sweeps.command import Command
from colonnade.sweeps.objective import check_importable
from colonnade.sweeps.search import NAME, value, written
from colonnade.sweeps.settings import SweepSettings
from colonnade.sweeps.slots.attempt import environment
from colonnade.sweeps.trial_folder import TrialFolder

AGAIN = "again"  # the folder, in that of the study, of a trial that is run again


def repeat_line(settings: SweepSettings, params: Mapping[str, Any]) -> str:
    """The command line that runs a trial of these parameters again, by itself."""
    if settings.objective is None:
        command = Command(settings.command)
        unplaced = {name: setting for name, setting in params.items() if name not in command.placeholders}
        inside = [f"{name}={text}" for name, text in command.environment(unplaced).items()]
        program = [*(["env", *inside] if inside else []), *command.filled(params)]
        return shlex.join(["colonnade", "run", *_cards(settings), "--", *program])
    fixed = [part for name, setting in params.items() for part in ("--fix", f"{name}={written(setting)}")]
    return shlex.join(["colonnade", "sweep", settings.objective, *fixed, *_cards(settings)])


def _cards(settings: SweepSettings) -> list[str]:
    options = [] if settings.cards == 1 else ["--cards", str(settings.cards)]
    if settings.memory != "1":
        options += ["--memory", settings.memory]
    if settings.virtual is not None or not pool_of(1, None).slots:
        options += ["--virtual", str(settings.cards)]
    return options


def fixed(texts: Sequence[str]) -> dict[str, Any]:
    """Parameters from texts such as rate=0.1."""
    pairs = [text.partition("=") for text in texts]
    bad = [
        text
        for text, (name, equals, _) in zip(texts, pairs, strict=True)
        if not NAME.fullmatch(name) or not equals
    ]
    rule = "must be the name of a parameter, = and its value"
    check("sweep", [Problem("--fix", text, rule, "Try --fix rate=0.1") for text in bad])
    return {name: value(text) for name, _, text in pairs}


def repeat(settings: SweepSettings, texts: Sequence[str]) -> int:
    """Run the objective once with fixed parameters; its exit code."""
    params = fixed(texts)
    if settings.objective is None:
        rule = "is for an objective in Python; a program has its parameters in its command line"
        raise InvalidArgument("sweep", [Problem("--fix", texts[0], rule, "Start the program with them")])
    check_importable(settings.objective)
    folder = TrialFolder(settings.path / AGAIN)
    if folder.path.exists():  # else it would go on from the checkpoint of another repeat
        shutil.rmtree(folder.path)
    folder.make()
    inside = [f"{name}={text}" for name, text in environment(folder).items()]
    program = [
        sys.executable,
        "-m",
        "colonnade.sweeps.slots.worker",
        "--fixed",
        settings.objective,
        json.dumps(params),
    ]
    virtual = settings.virtual
    if virtual is None and not pool_of(1, None).slots:
        virtual = settings.cards
    return launch(
        ["env", *inside, *program],
        cards=settings.cards,
        memory=settings.memory,
        virtual=virtual,
        share=settings.share,
        directory=settings.leases,
    )
