"""What a sweep tries, and in which order: samplers and pruners by name, grids and ranges from text."""

import itertools
import json
import random
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from colonnade.errors import Problem

SAMPLERS = ("tpe", "random", "qmc", "cmaes", "gp")
PRUNERS = ("median", "hyperband", "halving", "none")
NAME = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True)
class Search:
    """How many trials there are in all, what they try, and how that is chosen.

    `grid` lists the combinations, each of which is one trial; `kinds` are the distributions of their
    parameters. `space` are parameters that are chosen for every trial; an objective asks for its own.
    """

    trials: int
    sampler_name: str = "tpe"
    seed: int | None = None
    space: dict[str, BaseDistribution] = field(default_factory=dict)
    grid: list[dict[str, Any]] | None = None
    kinds: dict[str, BaseDistribution] = field(default_factory=dict)

    def sampler(self, number: int) -> optuna.samplers.BaseSampler:
        """The sampler of one trial.

        With a seed, what it draws follows from the seed, the trial's number and the trials before it: so a
        sweep that goes on does not draw again what it drew at first, nor do two machines draw the same.
        """
        own = None if self.seed is None else random.Random(f"{self.seed} {number}").getrandbits(32)
        return sampler(self.sampler_name, own, of_study=self.seed)


def sampler(name: str, seed: int | None, of_study: int | None = None) -> optuna.samplers.BaseSampler:
    """One of Optuna's samplers."""
    if name == "tpe":
        # Trials run side by side: without it two of them would be drawn at the same place.
        return optuna.samplers.TPESampler(seed=seed, constant_liar=True)
    if name == "qmc":  # one sequence, of which every trial is the next
        return optuna.samplers.QMCSampler(seed=of_study, scramble=True)
    kinds: dict[str, Callable[..., optuna.samplers.BaseSampler]] = {
        "random": optuna.samplers.RandomSampler,
        "cmaes": optuna.samplers.CmaEsSampler,
        "gp": optuna.samplers.GPSampler,
    }
    return kinds[name](seed=seed)


def pruner(name: str) -> optuna.pruners.BasePruner:
    """One of Optuna's pruners."""
    kinds: dict[str, Callable[[], optuna.pruners.BasePruner]] = {
        "median": optuna.pruners.MedianPruner,
        "hyperband": optuna.pruners.HyperbandPruner,
        "halving": optuna.pruners.SuccessiveHalvingPruner,
        "none": optuna.pruners.NopPruner,
    }
    return kinds[name]()


def search_problems(sampler_name: str, pruner_name: str) -> Iterator[Problem]:
    """What is wrong with the names of a sampler and a pruner, or with what they need."""
    if sampler_name not in SAMPLERS:
        yield Problem("--sampler", sampler_name, "is none that there is", f"Try {', '.join(SAMPLERS)}")
    else:
        try:
            sampler(sampler_name, None)
        except ImportError as missing:
            rule = f"needs a package that is not installed ({str(missing).partition(chr(10))[0].rstrip('.')})"
            yield Problem("--sampler", sampler_name, rule, "Install it, or try tpe")
    if pruner_name not in PRUNERS:
        yield Problem("--pruner", pruner_name, "is none that there is", f"Try {', '.join(PRUNERS)}")


def value(text: str) -> str | int | float | bool | None:
    """A value as one writes it: a number or true, false, null where it reads as one, else text.

    Example:
        >>> value("0.1"), value("64"), value("adam"), value('"64"')
        (0.1, 64, 'adam', '64')
    """
    try:
        read = json.loads(text)
    except ValueError:
        return text
    return read if isinstance(read, str | int | float | bool) or read is None else text


def written(setting: str | int | float | bool | None) -> str:
    """The text that `value` reads as this setting."""
    plain = setting if isinstance(setting, str) else json.dumps(setting)
    return plain if value(plain) == setting else json.dumps(setting)


def grid(texts: Sequence[str]) -> tuple[dict[str, list[Any]], list[Problem]]:
    """The values of each parameter, from texts such as rate=0.1,0.01."""
    values: dict[str, list[Any]] = {}
    amiss: list[Problem] = []
    for text in texts:
        name, equals, listed = text.partition("=")
        amiss += _name_problems("--grid", text, name, values)
        settings = [value(part.strip()) for part in listed.split(",") if part.strip()]
        if not equals or not settings:
            amiss.append(Problem("--grid", text, "has no values", f"Try {name or 'rate'}=0.1,0.01"))
        elif len(set(settings)) < len(settings):  # for Optuna, 1 and true are the same
            rule = "has a value twice, and every combination is tried once"
            amiss.append(Problem("--grid", text, rule, "Leave one of them out"))
        values[name] = settings
    return values, amiss


def ranges(texts: Sequence[str]) -> tuple[dict[str, BaseDistribution], list[Problem]]:
    """The distribution of each parameter, from texts such as rate=1e-4..1e-1:log or width=16..256."""
    space: dict[str, BaseDistribution] = {}
    amiss: list[Problem] = []
    for text in texts:
        name, _, span = text.partition("=")
        amiss += _name_problems("--range", text, name, space)
        try:
            space[name] = _distribution(span)
        except ValueError as error:
            fix = f"Try {name or 'rate'}=0.0001..0.1:log, or whole numbers: width=16..256"
            amiss.append(Problem("--range", text, str(error), fix))
    return space, amiss


def _distribution(span: str) -> BaseDistribution:
    span, colon, scale = span.partition(":")
    low, dots, high = span.partition("..")
    if not dots or (colon and scale != "log"):
        raise ValueError("must be LOW..HIGH, or LOW..HIGH:log")
    try:
        if re.fullmatch(r"-?\d+\.\.-?\d+", span):
            return IntDistribution(int(low), int(high), log=bool(colon))
        return FloatDistribution(float(low), float(high), log=bool(colon))
    except ValueError as error:
        raise ValueError(str(error).partition("\n")[0].rstrip(".")) from None


def _name_problems(option: str, text: str, name: str, known: Iterable[str]) -> Iterator[Problem]:
    if not NAME.fullmatch(name):
        yield Problem(option, text, "must begin with the name of a parameter and =", "Try rate=0.1,0.01")
    elif name in known:
        yield Problem(option, text, f"{name} is there twice", "Write its values into one option")


def combinations(values: dict[str, list[Any]], order: str, seed: int | None) -> list[dict[str, Any]]:
    """Every combination once, in the order of the values or, with `random`, in one that a seed gives."""
    every = [dict(zip(values, chosen, strict=True)) for chosen in itertools.product(*values.values())]
    if order == "random":
        random.Random(0 if seed is None else seed).shuffle(every)
    return every


def categories(values: dict[str, list[Any]]) -> dict[str, BaseDistribution]:
    """The distributions of the parameters of a grid."""
    return {name: CategoricalDistribution(tuple(settings)) for name, settings in values.items()}
