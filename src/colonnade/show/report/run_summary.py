"""What a page says of a run in figures and words: the strip on top, tables of settings, saves, restarts."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import median
from typing import Any

from colonnade.describe.pictures.html import size
from colonnade.describe.run_folder import FIGURES, Line, Run, inner, number, sessions
from colonnade.show.report.training_time import TrainingTime

# A run whose files were not touched for so many seconds, and that did not end, was killed.
SILENT = 120.0
# Settings that Keras makes up, and that say nothing of a run.
MADE_UP = ("Optimizer: name",)


@dataclass(frozen=True)
class Tile:
    """A figure of the strip."""

    name: str
    value: str
    note: str = ""


def tiles(run: Run) -> list[Tile]:
    """The figures that are looked at first."""
    losses = [value for value in run.column("loss") if value is not None]
    rates = [value for value in run.column("examples_per_second") if value is not None]
    steps = int(number(run.lines[-1].get("step")) or 0) if run.lines else 0
    strip = [Tile("steps", f"{steps:,}", _asked(run, steps))]
    if losses:
        strip.append(Tile("loss", f"{losses[-1]:.4g}", f"lowest {lowest_loss(run):.4g}"))
    for name in run.metrics[:2]:
        values = [value for value in run.column(name) if value is not None]
        strip.append(Tile(name, f"{values[-1]:.4g}", f"{min(values):.4g} to {max(values):.4g}"))
    if rates:
        strip.append(Tile("examples/s", f"{median(rates):,.0f}", "median of all lines"))
    if (seconds := TrainingTime.of(run).total) > 0:
        strip.append(Tile("time", duration(seconds), _began(run)))
    devices = run.facts.get("devices")
    if isinstance(devices, list):
        strip.append(Tile("devices", str(len(devices)), sync(run)))
    if run.timeline is not None:
        breakdown = run.timeline.breakdown()
        strip.append(
            Tile("waiting", f"{breakdown.part('waiting'):.0%}", "of the devices' time, in a profile")
        )
    if (stalled := stall(run)) and seconds:
        count = len(run.happened("save"))
        note = f"{count:,} save{'s' * (count != 1)}"
        strip.append(Tile("stalled by saves", f"{stalled / seconds:.2%}", note))
    return strip


def lowest_loss(run: Run) -> float | None:
    """That of all steps, also of those between two lines."""
    known = (*run.column("loss"), *run.column("loss_min"))
    return min((value for value in known if value is not None), default=None)


def _asked(run: Run, steps: int) -> str:
    asked = number(inner(run.facts, "mode").get("steps"))
    return f"of {asked:,.0f}" if asked and asked > steps else ""


def _began(run: Run) -> str:
    times = [time for line in (*run.progress, *run.lines) if (time := number(line.get("time"))) is not None]
    return f"began {moment(min(times))}" if times else ""


def moment(time: float) -> str:
    """A point in time, in UTC; files may hold times that no calendar has."""
    try:
        return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d %H:%M UTC")
    except (OverflowError, ValueError, OSError):
        return "at an unknown time"


def duration(seconds: float) -> str:
    """Seconds as people say them.

    >>> duration(0.5), duration(75), duration(119.7), duration(7260)
    ('0.5 s', '1 min 15 s', '2 min 0 s', '2 h 1 min')
    """
    if seconds < 60:
        return f"{seconds:.3g} s"
    if (whole := round(seconds)) < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def stall(run: Run) -> float:
    """Seconds that steps waited for saves."""
    return sum(number(line.get("stalled")) or 0.0 for line in run.happened("save"))


def state(run: Run, now: float) -> tuple[str, str]:
    """How the run is: a word for its looks (running, good, bad, unknown), and words for people."""
    pairs = list(sessions(run))
    if not pairs:
        return "unknown", "how it ended is not known"
    _, end = pairs[-1]
    if end is not None:
        how = str(end.get("how", ""))
        looks = {"finished": "good", "interrupted": "unknown"}.get(how, "bad")
        return looks, how or "ended"
    times = [time for line in (*run.progress, *run.lines) if (time := number(line.get("time"))) is not None]
    silent = now - max(times, default=0.0)
    if silent < SILENT:
        return "running", "running"
    return "bad", f"silent for {duration(silent)}: killed, or between log lines"


def sync(run: Run) -> str:
    return str(inner(run.facts, "mode").get("sync", "")).replace("()", "")


def sentence(run: Run) -> str:
    """What ran, in a line."""
    facts, mode = run.facts, inner(run.facts, "mode")
    models = facts.get("models")
    names = [str(model) for model in models] if isinstance(models, list) else []
    devices = facts.get("devices")
    said = [*names, str(inner(facts, "optimizer").get("name", ""))]
    if isinstance(devices, list):
        said.append(f"{len(devices)} device{'s' * (len(devices) != 1)}")
    said += [sync(run), f"variables {mode['variables']}" if mode.get("variables") else ""]
    batch = number(mode.get("batch"))
    said.append(f"batch {batch:.0f}" if batch else "")
    return " · ".join(word for word in said if word)


def settings(run: Run) -> dict[str, dict[str, str]]:
    """What was chosen and found, in groups; what is not known is left out."""
    facts, mode = run.facts, inner(run.facts, "mode")
    parameters, optimizer = inner(facts, "parameters"), inner(facts, "optimizer")
    counted = {
        "loss function": facts.get("loss"),
        "models": ", ".join(map(str, facts["models"])) if isinstance(facts.get("models"), list) else None,
        "program": facts.get("program"),
        "variables": parameters.get("variables"),
        "parameters": _plain(parameters.get("numbers")),
        "size": size(number(parameters["bytes"]) or 0) if "bytes" in parameters else None,
    }
    groups = {
        "Model": counted,
        "Optimizer": {"kind": optimizer.get("name"), **inner(optimizer, "settings")},
        "Mode": mode,
        "Machine": {
            **inner(facts, "machine"),
            "devices": ", ".join(map(str, facts["devices"]))
            if isinstance(facts.get("devices"), list)
            else None,
        },
        "Versions": inner(facts, "versions"),
    }
    plain = {
        group: {str(name): _plain(value) for name, value in values.items() if _plain(value)}
        for group, values in groups.items()
    }
    return {group: values for group, values in plain.items() if values}


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.6g}"
    return "" if value is None else str(value)


def differences(runs: Sequence[Run]) -> list[tuple[str, list[str]]]:
    """The settings in which runs differ, each with its value in every run."""
    by_run = [
        {f"{g}: {n}": v for g, values in settings(run).items() for n, v in values.items()} for run in runs
    ]
    names = dict.fromkeys(name for one in by_run for name in one)
    rows = [(name, [one.get(name, "") for one in by_run]) for name in names]
    return [(name, values) for name, values in rows if len(set(values)) > 1 and name not in MADE_UP]


# The columns of a comparison, before and after those of the metrics.
BEFORE = ("run", "state", "steps", "last loss", "lowest loss")
AFTER = ("examples/s", "time", "mode")


def comparison(runs: Sequence[Run], now: float) -> tuple[list[str], list[list[str]]]:
    """The names of columns, and a row per run: what came of it, and how fast."""
    metrics = list(dict.fromkeys(name for run in runs for name in run.metrics))
    rows = []
    for run in runs:
        lowest = lowest_loss(run)
        rates = [value for value in run.column("examples_per_second") if value is not None]
        rows.append(
            [
                run.name,
                state(run, now)[1],
                f"{number(run.lines[-1].get('step')) or 0:,.0f}" if run.lines else "",
                _last(run, "loss"),
                "" if lowest is None else f"{lowest:.4g}",
                *(_last(run, name) for name in metrics),
                f"{median(rates):,.0f}" if rates else "",
                duration(TrainingTime.of(run).total),
                sync(run),
            ]
        )
    told = [f"{name} (metric)" if name in (*BEFORE, *AFTER) else name for name in metrics]
    return [*BEFORE, *told, *AFTER], rows


def _last(run: Run, name: str) -> str:
    """The last value of a figure that is known."""
    values = (value for value in reversed(run.column(name)) if value is not None)
    return next((f"{value:.4g}" for value in values), "")


def history(run: Run) -> list[tuple[str, str]]:
    """When it began, went on and ended; a moment and words for each."""
    told = sorted(_told(run))
    return [(moment(time) if time else "at an unknown time", words) for time, words in told]


def _told(run: Run) -> Iterator[tuple[float, str]]:
    pairs = list(sessions(run))
    for k, (begin, end) in enumerate(pairs):
        start = number(begin.get("time")) or 0.0
        step, resumed = number(begin.get("step")) or 0, number(begin.get("resumed"))
        words = "began" if k == 0 else "began again"
        yield (
            start,
            f"went on from step {resumed:,.0f}" if resumed is not None else f"{words} at step {step:,.0f}",
        )
        if end is not None:
            at = number(end.get("step")) or 0
            yield number(end.get("time")) or start, f"{end.get('how', 'ended')} at step {at:,.0f}"
        elif k + 1 < len(pairs):
            following = number(pairs[k + 1][0].get("time")) or start
            yield following - 1e-6, "was killed some time before"


def restarts(run: Run) -> int:
    """How often it was started again after it had begun."""
    return max(0, len(list(sessions(run))) - 1)


def skips(run: Run) -> list[Line]:
    """The lines on updates that were left out because a gradient was not finite.

    Where a run went back to a saved step, what came after that was made again: only the last time counts.
    """
    kept: list[Line] = []
    for line in run.progress:
        step = number(line.get("step"))
        if line.get("event") == "skipped":
            kept.append(line)
        elif line.get("event") == "begin" and step is not None:
            kept = [one for one in kept if (number(one.get("step")) or 0) <= step]
    return kept


def skipped(run: Run) -> int:
    """How many updates were left out."""
    return int(sum(number(line.get("updates")) or 0 for line in skips(run)))


def process_memory(run: Run) -> float | None:
    """The most bytes of main memory that the process held."""
    held = [
        value
        for line in (*run.happened("memory"), *run.happened("end"))
        if (value := number(inner(line, "memory").get("process"))) is not None
    ]
    return max(held, default=None)


def not_finite(run: Run) -> list[str]:
    """Where the loss or a metric was not finite, in words."""
    steps: dict[str, list[float]] = {}
    for line in run.lines:
        for name, value in line.items():
            if (name == "loss" or name not in FIGURES) and number(value) is None:
                steps.setdefault(name, []).append(number(line["step"]) or 0)
    return [_gaps(run, name, at) for name, at in steps.items()]


def _gaps(run: Run, name: str, steps: Sequence[float]) -> str:
    who = "The loss" if name == "loss" else f"The metric {name}"
    if name != "loss" and name not in run.metrics:
        return f"{who} was not finite at any step, and has no curve."
    few = ", ".join(f"{step:,.0f}" for step in steps[:5])
    more = f" and {len(steps) - 5} more" if len(steps) > 5 else ""
    return f"{who} was not finite at step {few}{more}; the curve has a gap there."


def links(run: Run) -> Mapping[tuple[str, str], float]:
    """The bytes of a step by link."""
    listed: Any = run.facts.get("links")
    amounts: dict[tuple[str, str], float] = {}
    for link in listed if isinstance(listed, list) else []:
        if not isinstance(link, dict):
            continue
        source, target, amount = link.get("from"), link.get("to"), number(link.get("bytes"))
        if isinstance(source, str) and isinstance(target, str) and amount is not None:
            amounts[source, target] = amount
    return amounts


def saves(run: Run) -> Sequence[Line]:
    """The saves, the last ones first."""
    return [line for line in reversed(run.happened("save")) if number(line.get("step")) is not None]
