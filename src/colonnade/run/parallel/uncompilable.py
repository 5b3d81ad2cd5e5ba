"""What keeps XLA from compiling what a replica computes, told before it is run."""

import re
from collections.abc import Iterator, Sequence

from colonnade.errors import Problem
from colonnade.run.batch.split import Arguments
from colonnade.run.trace.traced import Traced

WITHOUT = "Leave it out"


def uncompilable(
    traces: Sequence[Traced], parts: Sequence[Arguments], *, timed: bool = False
) -> list[Problem]:
    """What stands in the way of compiling these traces of slices, called with slices like these."""
    return list(_otherwise(traces, timed=timed)) or list(_refused(traces, parts))


def _otherwise(traces: Sequence[Traced], *, timed: bool) -> Iterator[Problem]:
    """What XLA would do in another way, or not at all, without a word."""
    if timed:
        rule = 'shares="measured" reads the clock inside a replica, which XLA cannot'
        yield Problem("compile", True, rule, "Leave one of them out")
    if len(traces) > 1 and traces[0].marks:
        layer = next(iter(traces[0].marks)).rpartition("/")[0]
        yield Problem("compile", True, f"{layer} is synchronised, which cuts the function in pieces", WITHOUT)
    if any(traced.facts.speaks for traced in traces):
        rule = "the function prints, asserts or writes summaries, which XLA would leave out"
        yield Problem("compile", True, rule, WITHOUT)
    if any(traced.facts.repeats for traced in traces):
        rule = "the function draws seeded numbers (tf.random.uniform and its kin), which XLA draws otherwise"
        yield Problem("compile", True, rule, "Use tf.random.stateless_uniform, or leave it out")


def _refused(traces: Sequence[Traced], parts: Sequence[Arguments]) -> Iterator[Problem]:
    """What XLA itself says; replicas share traces, and slices of one size are compiled once."""
    for traced, part in {
        id(traced): (traced, part) for traced, part in zip(traces, parts, strict=True)
    }.values():
        said = traced.compile_error(part.components())
        if said is not None:
            yield Problem("compile", True, _rule(traced, said), WITHOUT)
            return


def _rule(traced: Traced, said: str) -> str:
    """What XLA said, in a line: the ops that it does not know, and the user's line of the first one."""
    ops = list(dict.fromkeys(re.findall(r"\b([A-Z]\w+) \((?:No registered|[^)]*not supported)", said)))
    nodes = re.findall(r"\{\{node ([^}]+)\}\}|node `([^`]+)`", said)
    lines = [line for pair in nodes if (line := traced.line_of("".join(pair))) is not None]
    first = said.strip().splitlines()[0].removeprefix("Failed getting HLO text: ")
    what = f"XLA cannot compile {', '.join(ops)}" if ops else f"XLA says: {first}"
    return f"{what} (at {lines[0]})" if lines else what
