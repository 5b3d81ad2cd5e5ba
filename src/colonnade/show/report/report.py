"""`colonnade report` and `history.report`: one page on one run or on several, from what `logdir=` holds."""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from colonnade import __version__
from colonnade.describe.device_order import in_order
from colonnade.describe.pictures.colours import line_colour
from colonnade.describe.pictures.html import size
from colonnade.describe.run_folder import Run, inner, number, read_run, told_apart
from colonnade.describe.waits import BOUND, EDGE, OTHER_MACHINES, PROGRAM
from colonnade.describe.whole_file import write_whole
from colonnade.errors import ColonnadeError, InvalidArgument, Problem, check
from colonnade.show.report import charts, run_summary
from colonnade.show.report.forecast import forecast
from colonnade.show.report.study import is_study, study_page
from colonnade.show.report.traffic import LinkTraffic

# By this a page knows that it may be made again.
GENERATOR = "Colonnade report"
SECONDS = 5  # between two pages of a run that goes on
WHERE = "colonnade report"


def report(paths: Sequence[str | Path], output: str | Path | None = None, *, force: bool = False) -> Path:
    """Make a page of what `fit(..., logdir=)` wrote into some folders, or of the study of a sweep.

    The page is one file, which needs no other and no network. A page that was made before is made
    again; another file is kept, unless `force` is set.

    Args:
        paths: the folders; several runs are compared, a study stands alone.
        output: the page; by default `report.html` in the folder, or here for several runs.
        force: whether to write over a file that is no page of Colonnade's.

    Returns:
        Where the page is.
    """
    return _made(paths, output, force, watched=False)


def _made(paths: Sequence[str | Path], output: str | Path | None, force: bool, *, watched: bool) -> Path:
    check(WHERE, [*_unnamed(paths), *_beside_others(paths)])
    of_study = any(is_study(Path(path)) for path in paths)
    runs = [] if of_study else _read(paths)
    page = _output(paths, output)
    check(WHERE, _unwritable(page, force))
    refresh = SECONDS if watched else 0
    text = study_page(Path(paths[0]), refresh) if of_study else rendered(runs, time.time(), refresh)
    try:
        # Through a link, as whoever made it wants the page in another place.
        write_whole(Path(os.path.realpath(page)), text)
    except OSError as error:
        raise InvalidArgument(WHERE, [_closed(page, error.strerror)]) from None
    return page


def _read(paths: Sequence[str | Path]) -> list[Run]:
    """The runs; what is wrong with any of the folders comes in one error."""
    runs: list[Run] = []
    wrong: list[Problem] = []
    for path in paths:
        try:
            runs.append(read_run(path, WHERE))
        except InvalidArgument as error:
            wrong += error.problems
    check(WHERE, wrong)
    return runs


def watch(
    paths: Sequence[str | Path], output: str | Path | None = None, *, force: bool = False
) -> Iterator[Path]:
    """Make the page again and again, with a pause of some seconds in between.

    Each one looks at itself again, whatever the run does: one that is silent compiles perhaps, and after
    one that has finished the next fit into the same folder begins.
    """
    while True:
        yield _made(paths, output, force, watched=True)
        force = False  # from now on it is a page of ours
        time.sleep(SECONDS)


def _unnamed(paths: Sequence[str | Path]) -> Iterator[Problem]:
    if not paths:
        yield Problem("DIR", "", "names no folder", "Name that of fit(..., logdir=)")


def _beside_others(paths: Sequence[str | Path]) -> Iterator[Problem]:
    if len(paths) > 1:
        rule = "is the study of a sweep, which has a page of its own"
        yield from (Problem("DIR", str(p), rule, "Name it alone") for p in paths if is_study(Path(p)))


def _output(paths: Sequence[str | Path], output: str | Path | None) -> Path:
    if output is not None:
        return Path(output)
    return Path(paths[0]) / "report.html" if len(paths) == 1 else Path("report.html")


def _unwritable(page: Path, force: bool) -> Iterator[Problem]:
    try:
        if "\0" in str(page):
            rule = "is no path that a system can have"
            yield Problem("output", str(page), rule, "Leave the NUL byte out")
        elif page.is_dir():
            yield Problem("output", str(page), "is a directory", "Name a file in it, such as report.html")
        elif page.exists() and not page.is_file():
            # Such as a pipe, which nobody may ever write to: whoever reads it waits.
            rule = "is there, and is no regular file"
            yield Problem("output", str(page), rule, "Name another file")
        elif page.is_symlink() and not page.exists() and not force:
            rule = f"is a link to {os.readlink(page)}, which is not there"
            yield Problem("output", str(page), rule, "Name another file, or make the page there with --force")
        elif page.exists() and not force and not _ours(page):
            rule = "is there, and is no page of Colonnade's"
            yield Problem("output", str(page), rule, "Name another file, or write over it with --force")
        elif not Path(os.path.realpath(page)).parent.is_dir():
            yield Problem("output", str(page), "is in no directory", "Make the directory first")
    except OSError as error:
        yield _closed(page, error.strerror)


def _closed(page: Path, why: str | None) -> Problem:
    return Problem("output", str(page), f"cannot be written ({why})", "Name a file in a folder of yours")


def _ours(page: Path) -> bool:
    with page.open("rb") as file:
        return f'<meta name="generator" content="{GENERATOR}">'.encode() in file.read(2000)


def rendered(runs: Sequence[Run], now: float, refresh: int = 0) -> str:
    """The page; it looks at itself again after so many seconds, and also while a run goes on."""
    try:
        from markupsafe import Markup
        from plotly.offline import get_plotlyjs

        from colonnade.show.page import render
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] not in ("markupsafe", "plotly", "jinja2"):
            raise
        raise ColonnadeError("a report needs Plotly and Jinja2: pip install 'colonnade[report]'") from None
    if len(runs) > 1:
        runs = told_apart(runs)
    drawn: list[charts.Chart] = []
    described = [_told(run, i, drawn, now) for i, run in enumerate(runs)]
    metrics = ["loss", *dict.fromkeys(name for run in runs for name in run.metrics)]
    logged = [run for run in runs if run.lines]
    learning = [(_add(drawn, charts.metric(logged, name)), name) for name in metrics if logged]
    speed = _add(drawn, charts.speed(logged)) if logged else None
    states = [one["state"][0] for one in described]
    columns, rows = run_summary.comparison(runs, now)
    return render(
        "report.html",
        generator=GENERATOR,
        version=__version__,
        made=run_summary.moment(now),
        title=runs[0].name if len(runs) == 1 else f"{len(runs)} runs",
        lead=described[0]["lead"] if len(runs) == 1 else ", ".join(run.name for run in runs),
        refresh=refresh or (SECONDS if "running" in states else 0),
        runs=described,
        names=[run.name for run in runs],
        compared=[columns, *rows],
        differences=[[name, *values] for name, values in run_summary.differences(runs)],
        flaws=[words if len(runs) == 1 else f"{run.name}: {words}" for run in runs for words in _flaws(run)],
        sections=_sections(described),
        learning=learning,
        banded=any("loss_max" in line for run in runs for line in run.lines),
        speed=speed,
        charts=drawn,
        sources=[str(run.path) for run in runs],
        plotly=Markup(get_plotlyjs()),
    )


def _flaws(run: Run) -> list[str]:
    damaged = "run.json: the links between devices cannot be read, and are left out"
    return [*run.flaws, *[damaged] * LinkTraffic.of(run).damaged, *run_summary.not_finite(run)]


def _sections(described: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
    if len(described) > 1:
        first = [("Compared", "compared"), ("Learning", "learning"), ("Speed", "speed")]
        return [*first, *((one["name"], one["key"]) for one in described)]
    key = described[0]["key"]
    return [
        ("Learning", "learning"),
        ("Speed", "speed"),
        ("Where the time went", f"{key}-time"),
        ("Devices", f"{key}-devices"),
        ("Course", f"{key}-course"),
        ("What ran where", f"{key}-settings"),
    ]


def _add(drawn: list[charts.Chart], chart: charts.Chart | None) -> int | None:
    """The number of a chart on the page."""
    if chart is None:
        return None
    drawn.append(chart)
    return len(drawn) - 1


def _told(run: Run, i: int, drawn: list[charts.Chart], now: float) -> dict[str, Any]:
    """All that the page says of one run."""
    stalled = run_summary.stall(run)
    saves = run_summary.saves(run)
    return {
        "key": f"run-{i}",
        "name": run.name,
        "colour": line_colour(i),
        "state": run_summary.state(run, now),
        "lead": run_summary.sentence(run),
        "tiles": run_summary.tiles(run),
        **_time(run, drawn),
        **_devices(run, drawn),
        "notes": list(_notes(run)),
        "history": run_summary.history(run),
        "saves": [
            (
                f"{number(save['step']) or 0:,.0f}",
                f"{(number(save.get('stalled')) or 0) * 1e3:.3g} ms",
                size(number(save.get("bytes")) or 0),
            )
            for save in saves[:12]
        ],
        "stalled": f"{len(saves)}, steps waited {run_summary.duration(stalled)} in all"
        + (", the last 12 are" if len(saves) > 12 else ""),
        "settings": run_summary.settings(run),
    }


def _time(run: Run, drawn: list[charts.Chart]) -> dict[str, Any]:
    """Where the time went."""
    foretold, left_out = None, 0
    if run.predicted is not None and run.predicted.events:
        foretold, left_out = charts.timeline(run.predicted, "predicted")
    common = {
        "forecast": forecast(run),
        "predicted": _add(drawn, foretold),
        "predicted_undrawn": left_out,
    }
    if run.timeline is None or not run.timeline.events:
        return {**common, "words": [], "timeline": None, "undrawn": 0}
    breakdown = run.timeline.breakdown()
    advice = {f"{words[0].upper()}{words[1:]}." for words in breakdown.advice()}
    chart, undrawn = charts.timeline(run.timeline, "measured")

    def part(amount: float) -> str:
        return f"{amount / breakdown.span:.1%}" if breakdown.span else ""

    waits = {device: _reasons(row) for device, row in breakdown.waited_for.items()}
    reasons = [what for what in _REASONS if _any(waits, what, breakdown.span)]
    return {
        **common,
        "words": [(sentence, sentence in advice) for sentence in breakdown.sentences()],
        "timeline": _add(drawn, chart),
        "undrawn": undrawn,
        "parts": [
            ["device", *breakdown.kinds],
            *(
                [device, *(part(breakdown.seconds[device].get(kind, 0.0)) for kind in breakdown.kinds)]
                for device in in_order(breakdown.seconds)
            ),
        ],
        "waits": [
            ["device", *reasons],
            *([device, *(part(waits[device][what]) for what in reasons)] for device in in_order(waits)),
        ],
    }


# What devices wait for, as the page tells it.
_REASONS = (
    "other devices",
    OTHER_MACHINES,
    "reduction",
    "update",
    "input",
    "checkpoint",
    BOUND,
    EDGE,
    PROGRAM,
)


def _reasons(waited: Mapping[str, float]) -> dict[str, float]:
    """With all other devices as one reason."""
    known = {what: waited.get(what, 0.0) for what in _REASONS[1:]}
    devices = sum(amount for what, amount in waited.items() if what not in known)
    return {_REASONS[0]: devices, **known}


def _any(waits: Mapping[str, Mapping[str, float]], what: str, span: float) -> bool:
    return any(row[what] > 0.0005 * span for row in waits.values())


def _devices(run: Run, drawn: list[charts.Chart]) -> dict[str, Any]:
    """Links, memory, shares and staleness."""
    from markupsafe import Markup

    traffic = LinkTraffic.of(run)
    return {
        "network": Markup(traffic.html),
        "traffic": traffic.words,
        "memory": _add(drawn, charts.memory(run)),
        "shares": _add(drawn, charts.shares(run)),
        "staleness": _add(drawn, charts.staleness(run)),
    }


def _notes(run: Run) -> Iterator[str]:
    names = inner(run.facts, "machines").get("names")
    if isinstance(names, list) and len(names) > 1:
        own = int(number(inner(run.facts, "machines").get("rank")) or 0)
        who = (
            f"{names[own]}, machine {own} of {', '.join(map(str, names))}" if 0 <= own < len(names) else "one"
        )
        yield (
            f"This is the log of {who}. Loss and speed are those of all; devices, memory, links and the "
            "timeline are its own. The others write into machine-1, machine-2, ... of the first one's folder."
        )
    held = run_summary.process_memory(run)
    if held:
        yield f"The process held {size(held)} of main memory at most, which all CPU devices share."
    memory = run.facts.get("memory")
    if run.facts and not (isinstance(memory, dict) and memory.get("estimate")):
        yield "Memory was not estimated: trainer.memory(batch) before fit does so, and the page shows it."
    if count := run_summary.skipped(run):
        yield f"{count:,} updates were left out because a gradient was not finite."
    if count := run_summary.restarts(run):
        yield f"It was started again {count} time{'s' * (count > 1)}."
