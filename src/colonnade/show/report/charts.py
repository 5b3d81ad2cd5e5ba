"""The charts of a page on runs, as plain data for Plotly: curves, timelines, memory, shares, staleness.

A chart is a dict of traces and of what its layout has beside that of all charts. Curves carry their x
twice, in steps and in seconds, and the page exchanges them. Text goes through Plotly, which reads a few
tags of HTML in it, so whatever a user named is spelled.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from math import floor, isfinite, log10
from typing import Any

from colonnade.describe.breakdown import KINDS
from colonnade.describe.device_order import in_order
from colonnade.describe.pictures.colours import KIND_COLOURS, OTHER, line_colour
from colonnade.describe.pictures.html import size
from colonnade.describe.run_folder import Line, Run, inner, number
from colonnade.describe.timeline import Event, Timeline
from colonnade.describe.waits import HOST
from colonnade.show.report import run_summary
from colonnade.show.report.thinning import extremes, kept, kept_together
from colonnade.show.report.training_time import TrainingTime

Chart = dict[str, Any]
# A timeline with more events is drawn without the shortest ones, which a screen could not show.
MOST_EVENTS = 6000


def rounded(value: float | None) -> float | None:
    """Six digits are more than a screen shows, and half of the size of a page; None if it is not finite."""
    return None if value is None or not isfinite(value) else float(f"{value:.6g}")


def exact(step: float | None) -> float | int | None:
    """A step with all its digits, as a long run has more than six of them.

    >>> exact(12345678.0)
    12345678
    """
    return int(step) if step is not None and step.is_integer() else step


def spelled(text: str) -> str:
    """A text as Plotly reads it back.

    Plotly reads tags and few of HTML's names of characters, and fills in what follows %{.

    >>> spelled('<b> "%{y}"')
    '&lt;b&gt; "%&#123;y}"'
    """
    return escape(text, quote=False).replace("%{", "%&#123;")


def curve(run: Run, values: Sequence[float | None], name: str, colour: str, **look: Any) -> Chart:
    """A line over the steps of a run; `chosen` are the points to draw, if not those that suit it best."""
    chosen = look.pop("chosen", None) or kept(values)
    return {
        "type": "scatter",
        "mode": "lines+markers" if _stand_alone([values[i] for i in chosen]) else "lines",
        "marker": {"size": 5, "color": colour},
        "name": spelled(name),
        **_places(run, chosen),
        "y": [rounded(values[i]) for i in chosen],
        "line": {"color": colour, "width": look.pop("width", 1.8), **look.pop("line", {})},
        "hovertemplate": f"%{{y:.5g}}<extra>{spelled(name)}</extra>",
        **look,
    }


def _stand_alone(values: Sequence[float | None]) -> bool:
    """Whether a point has gaps on both sides, so that no line goes through it."""
    known = [False, *(value is not None for value in values), False]
    return any(known[i] and not known[i - 1] and not known[i + 1] for i in range(1, len(known) - 1))


def _places(run: Run, chosen: Sequence[int]) -> Chart:
    """Where on the x-axis some log lines are: the steps, and the seconds trained until then."""
    lines = [run.lines[i] for i in chosen]
    return {
        "x": [exact(number(line.get("step"))) for line in lines],
        "times": _seconds(run, lines),
    }


def _seconds(run: Run, lines: Iterable[Line]) -> list[float | None]:
    """The seconds of training until some lines were written, to the millisecond."""
    trained = TrainingTime.of(run)
    written = [number(line.get("time")) for line in lines]
    return [None if time is None else _finite(round(trained.at(time), 3)) for time in written]


def _finite(value: float) -> float | None:
    return value if isfinite(value) else None


def metric(runs: Sequence[Run], name: str) -> Chart:
    """A metric of all runs; of the loss also its range between lines, and of one run that of replicas."""
    traces: list[Chart] = []
    one = runs[0] if len(runs) == 1 else None
    for i, run in enumerate(runs):
        if name == "loss" and any("loss_max" in line for line in run.lines):
            traces += _between(run, line_colour(i))
        label = name if one else run.name
        traces.append(curve(run, run.column(name), label, line_colour(i), width=2))
    if one and name == "loss":
        traces += [
            curve(one, values, f"on {device}", line_colour(i + 1), width=1, visible="legendonly")
            for i, (device, values) in enumerate(by_device(one, "replicas").items())
        ]
    return {"traces": traces, "layout": {"yaxis": {"title": {"text": spelled(name)}}}, "curve": True}


def _between(run: Run, colour: str) -> list[Chart]:
    """The lowest and the highest loss of the steps between two lines, as a band."""
    middles, lows, highs = extremes(run.column("loss_min"), run.column("loss_max"), 1000)
    common = {
        "type": "scatter",
        "mode": "lines",
        **_places(run, middles),
        "line": {"width": 0},
        "hoverinfo": "skip",
        "showlegend": False,
    }
    faint = f"rgba({int(colour[1:3], 16)},{int(colour[3:5], 16)},{int(colour[5:7], 16)},.18)"
    return [
        {**common, "y": [rounded(value) for value in lows]},
        {**common, "y": [rounded(value) for value in highs], "fill": "tonexty", "fillcolor": faint},
    ]


def by_device(run: Run, name: str) -> dict[str, list[float | None]]:
    """A figure that lines have for each device, such as the losses of replicas."""
    devices: dict[str, None] = {}
    for line in run.lines:
        devices |= dict.fromkeys(inner(line, name))
    return {
        device: [number(inner(line, name).get(device)) for line in run.lines] for device in in_order(devices)
    }


def speed(runs: Sequence[Run]) -> Chart:
    """Examples per second, with a mark where a run was saved or began again."""
    traces = [
        curve(
            run,
            run.column("examples_per_second"),
            "examples/s" if len(runs) == 1 else run.name,
            line_colour(i),
        )
        for i, run in enumerate(runs)
    ]
    if len(runs) == 1:
        traces += [
            _marks(runs[0], "save", "diamond", KIND_COLOURS["checkpoint"], _stalled),
            _marks(runs[0], "skipped", "x", KIND_COLOURS["backward"], lambda line: "update left out"),
        ]
    layout = {"yaxis": {"title": {"text": "examples/s"}, "rangemode": "tozero"}}
    return {"traces": [trace for trace in traces if trace["x"]], "layout": layout, "curve": True}


def _stalled(line: Mapping[str, Any]) -> str:
    return f"saved; steps waited {(number(line.get('stalled')) or 0) * 1e3:.3g} ms"


def _marks(run: Run, kind: str, symbol: str, colour: str, words: Callable[[Any], str]) -> Chart:
    """A mark on the axis for each thing of a kind that happened."""
    told = run_summary.skips(run) if kind == "skipped" else run.happened(kind)
    lines = [line for line in told if number(line.get("step")) is not None][-500:]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": {"save": "saves", "skipped": "skipped updates"}[kind],
        "x": [exact(number(line["step"])) for line in lines],
        "times": _seconds(run, lines),
        "y": [0] * len(lines),
        "text": [words(line) for line in lines],
        "marker": {"symbol": symbol, "size": 9, "color": colour},
        "hovertemplate": "%{text}<extra></extra>",
        "cliponaxis": False,
    }


def shares(run: Run) -> Chart | None:
    """The part of a batch that each device got, where that was measured."""
    columns = by_device(run, "shares")
    if not columns:
        return None
    # What is stacked must have its points at the same steps.
    chosen = kept_together(list(columns.values()))
    traces = [
        curve(run, values, device, line_colour(i), stackgroup="one", width=0.5, chosen=chosen)
        for i, (device, values) in enumerate(columns.items())
    ]
    return {
        "traces": traces,
        "layout": {"yaxis": {"title": {"text": "part of a batch"}, "tickformat": ".0%", "range": [0, 1]}},
        "curve": True,
    }


def staleness(run: Run) -> Chart | None:
    """How many gradients of each age were applied in all."""
    counts = next((dict(seen) for line in reversed(run.lines) if (seen := inner(line, "staleness"))), {})
    ages = {
        int(age): count
        for age, n in counts.items()
        if len(age) < 16 and age.isdecimal() and (count := number(n))
    }
    if not ages:
        return None
    order = sorted(ages)
    trace = {
        "type": "bar",
        "x": order,
        "y": [ages[age] for age in order],
        "marker": {"color": line_colour(0)},
        "hovertemplate": "%{y:,} gradients were %{x} updates old<extra></extra>",
        "name": "gradients",
    }
    xaxis = {"title": {"text": "age in updates"}, "dtick": max(1, len(order) // 15)}
    return {"traces": [trace], "layout": {"xaxis": xaxis, "yaxis": {"title": {"text": "gradients"}}}}


def timeline(events: Timeline, title: str) -> tuple[Chart, int]:
    """A line per device and a box per event, and how many events were too short to be drawn."""
    drawn = sorted(events.events, key=lambda event: -event.seconds)[:MOST_EVENTS]
    by_kind: dict[str, list[Event]] = defaultdict(list)
    for event in sorted(drawn, key=lambda event: event.start):
        by_kind[event.kind].append(event)
    order = [*(kind for kind in KINDS if kind in by_kind), *sorted(set(by_kind) - set(KINDS))]
    digits = _decimals(events.span * 1e3)
    devices = [d for d in in_order(events.devices) if d != HOST] + [HOST] * (HOST in events.devices)
    traces = [
        {
            "type": "bar",
            "orientation": "h",
            "name": spelled(kind),
            "y": [spelled(event.device) for event in by_kind[kind]],
            "base": [round(event.start * 1e3, digits) for event in by_kind[kind]],
            "x": [round(event.seconds * 1e3, digits) for event in by_kind[kind]],
            "text": [_told(event) for event in by_kind[kind]],
            "textposition": "none",
            "marker": {"color": KIND_COLOURS.get(kind, OTHER), "line": {"width": 0}},
            # Plotly's x is where a bar ends.
            "hovertemplate": f"<b>{spelled(kind)}</b> %{{text}}, from %{{base:.5~g}} ms<extra></extra>",
        }
        for kind in order
    ]
    layout = {
        "barmode": "overlay",
        "bargap": 0.25,
        "hovermode": "closest",
        "height": 120 + _row(len(devices), 46) * len(devices),
        "xaxis": {"title": {"text": f"ms ({title})"}, "range": [0, round(events.span * 1e3, digits)]},
        "yaxis": {
            "type": "category",  # also where devices are called by numbers
            "categoryorder": "array",
            "categoryarray": [spelled(device) for device in reversed(devices)],
            "fixedrange": True,
            "title": {"text": ""},
        },
    }
    return {"traces": traces, "layout": layout, "timeline": True}, len(events.events) - len(drawn)


def _decimals(span: float) -> int:
    """How many decimals tell a ten millionth of a span, so that boxes which touch each other do so drawn.

    >>> _decimals(20.0), _decimals(1e9)
    (6, 0)
    """
    return max(0, 7 - floor(log10(span))) if span > 0 else 0


def _told(event: Event) -> str:
    """What is known of an event, and how long it took."""
    said = [] if event.step is None else [f"step {event.step}"]
    if event.stage is not None:
        said.append(f"stage {event.stage}")
    if event.micro_batch is not None:
        said.append(f"micro-batch {event.micro_batch}")
    if event.bucket is not None:
        said.append(f"bucket {event.bucket}")
    if event.link:
        said.append(spelled(event.link))
    if event.bytes:
        said.append(size(event.bytes))
    if event.cause:
        said.append(f"for {spelled(event.cause)}")
    return f"{', '.join(said)}<br>{event.seconds * 1e3:.4g} ms"


def memory(run: Run) -> Chart | None:
    """What each device was estimated to need, what it held at most, and its limit."""
    facts = inner(run.facts, "memory")
    estimate, limits = inner(facts, "estimate"), inner(facts, "limits")
    real: dict[str, float] = {}
    for line in (*run.happened("memory"), *run.happened("end")):
        held = inner(inner(line, "memory"), "devices")
        real |= {device: n for device, value in held.items() if (n := number(value))}
    devices = in_order({*estimate, *real, *limits})
    if not devices:
        return None
    labels = [spelled(device) for device in devices]
    unit, divisor = _unit(
        [*real.values(), *map(number, limits.values()), *(_of(v, "total") for v in estimate.values())]
    )
    kinds = {"parameters": "forward", "slots": "update", "gradients": "reduction", "activations": "backward"}
    traces: list[Chart] = [
        {
            "type": "bar",
            "orientation": "h",
            "name": f"{kind} (estimate)",
            "y": labels,
            "x": [rounded(_of(estimate.get(device), kind) / divisor) for device in devices],
            "marker": {"color": KIND_COLOURS[colour]},
            "hovertemplate": f"{kind}: %{{x:.4g}} {unit}<extra></extra>",
            "offsetgroup": "estimate",
        }
        for kind, colour in kinds.items()
        if estimate
    ]
    for name, values, symbol in (("held at most", real, "diamond"), ("limit", limits, "line-ns-open")):
        if values:
            traces.append(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "name": name,
                    "y": labels,
                    "x": [
                        None if (n := number(values.get(d))) is None else rounded(n / divisor)
                        for d in devices
                    ],
                    "marker": {
                        "symbol": symbol,
                        "size": 15,
                        "color": KIND_COLOURS["checkpoint"],
                        "line": {"width": 3},
                    },
                    "hovertemplate": f"{name}: %{{x:.4g}} {unit}<extra></extra>",
                }
            )
    layout = {
        "barmode": "stack",
        "height": 130 + _row(len(devices), 40) * len(devices),
        "xaxis": {"title": {"text": unit}, "rangemode": "tozero"},
        "yaxis": {"type": "category", "autorange": "reversed", "title": {"text": ""}},
        "hovermode": "closest",
    }
    return {"traces": traces, "layout": layout}


def _row(num_devices: int, usual: int) -> int:
    """The height of a line in pixels, less where there are many of them."""
    return max(16, min(usual, 640 // num_devices)) if num_devices else usual


def _of(row: Any, kind: str) -> float:
    return number(row.get(kind)) or 0.0 if isinstance(row, dict) else 0.0


def _unit(sizes: Sequence[float | None]) -> tuple[str, int]:
    """The unit in which the largest of some sizes is best said."""
    largest = max((amount for amount in sizes if amount is not None), default=0.0)
    for unit, divisor in (("GiB", 2**30), ("MiB", 2**20)):
        if largest >= divisor:
            return unit, divisor
    return "KiB", 2**10
