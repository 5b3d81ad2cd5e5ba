"""The targets, and whether they are met: ratios within one contest, best settings on both sides."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from contest import Spread
from results import ALONE, LARGER, NAMES, Results

# Geometric means over the models that must be reached against MirroredStrategy, by devices.
AGAINST_MIRRORED = {2: 1.5, 8: 2.0, 32: 2.5}
FIRST_STEP = (8, 32)
UPDATES = 3000  # per second, asynchronous, one weight


@dataclass(frozen=True)
class Claim:
    """A figure, the rule for it, and whether it holds; a rule of None is only reported."""

    text: str
    figure: Spread
    rule: str | None = None
    holds: bool = True

    @property
    def verdict(self) -> str:
        if self.rule is None:
            return "-"
        return "PASS" if self.holds else "FALLS SHORT"


def at_least(text: str, figure: Spread, limit: float) -> Claim:
    return Claim(text, figure, f"at least {limit:g}", figure.median >= limit)


def at_most(text: str, figure: Spread, limit: float) -> Claim:
    return Claim(text, figure, f"at most {limit:g}", figure.median <= limit)


def geometric_mean(ratios: dict[str, list[float]]) -> Spread:
    """Over the models, round by round."""
    rounds = zip(*ratios.values(), strict=False)
    return Spread.of([float(np.exp(np.mean(np.log(values)))) for values in rounds])


def against(
    results: Results, devices: int, contender: str, least: float | None, mean: float | None
) -> Iterator[Claim]:
    """Speed against a contender: each model, then the geometric mean."""
    ratios = results.speedups(devices, contender)
    text = f"{devices} devices against {NAMES[contender]}"
    for model, values in ratios.items():
        figure = Spread.of(values)
        yield (
            Claim(f"{text}: {model}", figure)
            if least is None
            else at_least(f"{text}: {model}", figure, least)
        )
    if ratios:
        figure = geometric_mean(ratios)
        told = f"{text}: geometric mean"
        yield Claim(told, figure) if mean is None else at_least(told, figure, mean)


def against_alone(results: Results) -> Iterator[Claim]:
    """Two devices against one device with all cores: TensorFlow's, and the fastest of all frameworks."""
    ratios = {m: values for m, values in results.speedups(2, "single").items() if m in LARGER}
    text = f"2 devices against {NAMES['single']}, all cores"
    for model, values in ratios.items():
        yield at_least(f"{text}: {model}", Spread.of(values), 0.97)
    if ratios:
        yield at_least(f"{text}: geometric mean of the six larger", geometric_mean(ratios), 1.0)
    fastest = {}
    for model in ratios:
        known = [steps for name in ALONE if (steps := results.steps(model, 2, name))]
        ours = results.steps(model, 2, "colonnade")
        if len(known) == len(ALONE) and ours:
            best = [min(values) for values in zip(*known, strict=False)]
            fastest[model] = [b / a for a, b in zip(ours, best, strict=False)]
    for model, values in fastest.items():
        yield Claim(f"2 devices against the fastest framework on one device: {model}", Spread.of(values))
    if fastest:
        told = "2 devices against the fastest framework on one device: geometric mean of the six larger"
        yield at_least(told, geometric_mean(fastest), 1.0)


def of_polynomial(results: Results) -> Iterator[Claim]:
    for contender in ("sharded", "session"):
        if values := results.speedups(2, contender).get("polynomial"):
            figure = Spread.of([1 / value for value in values])
            yield at_most(f"polynomial, time of a step against {NAMES[contender]}", figure, 1.0)


def of_first_steps(results: Results) -> Iterator[Claim]:
    for devices in FIRST_STEP:
        for model in results.speedups(devices, "mirrored"):
            ours, theirs = (results.figure(model, devices, n, "first") for n in ("colonnade", "mirrored"))
            if ours and theirs:
                told = f"{devices} devices, time to the first step against MirroredStrategy: {model}"
                yield at_most(told, Spread.of([ours / theirs]), 0.5)


def of_memory(results: Results) -> Iterator[Claim]:
    """What 7 more devices add to the peak, as a part of what 7 more sets of variables add."""
    contest = results.contest("memory")
    if contest.rounds:
        names = ("memory 1", "memory 8", "copies 8")
        one, eight, sets = (contest.values(name, "memory") for name in names)
        added = [(b - a) / (c - a) for a, b, c in zip(one, eight, sets, strict=True)]
        yield at_most(
            "memory that 8 devices add with shared variables, against copies", Spread.of(added), 0.5
        )


def of_input(results: Results) -> Iterator[Claim]:
    contest = results.contest("input")
    if contest.rounds:
        pairs = zip(contest.values("fed", "step"), contest.values("fed", "at_once"), strict=True)
        figure = Spread.of([late / at_once for late, at_once in pairs])
        told = "cnn on 2 devices, input that takes 0.7 of a step to arrive against input that is there"
        yield at_most(told, figure, 1.1)


def of_updates(results: Results) -> Iterator[Claim]:
    contest = results.contest("updates")
    if contest.rounds:
        told = "asynchronous, one weight: thousands of updates per second"
        rates = [rate / 1000 for rate in contest.values("asynchronous", "updates")]
        yield at_least(told, Spread.of(rates), UPDATES / 1000)


def of_checkpoints(results: Results) -> Iterator[Claim]:
    for model in ("mlp", "deep"):
        contest = results.contest(f"checkpoint {model}")
        if contest.rounds:
            told = f"checkpointed fit with short epochs and a full shuffle, against none: {model}"
            yield at_most(told, contest.ratio("every", "never", "seconds"), 1.05)


def claims(results: Results) -> list[Claim]:
    found: list[Claim] = []
    for devices, mean in AGAINST_MIRRORED.items():
        found += against(results, devices, "mirrored", 1.0, mean)
    for contender in ("ddp", "sharded"):
        found += against(results, 2, contender, 1.0, None)
        found += against(results, 8, contender, None, None)
    found += against(results, 32, "sharded", None, None)
    found += against(results, 2, "towers", None, None)
    for rest in (against_alone, of_polynomial, of_first_steps, of_memory, of_input):
        found += rest(results)
    return [*found, *of_updates(results), *of_checkpoints(results)]
