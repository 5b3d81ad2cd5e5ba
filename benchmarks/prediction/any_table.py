"""Predicts a table that is in a file, without code of its own: a row for each step that somebody measured.

Columns that a table does not have, or has empty in a row, are left to the rule beside them.

    model            a name of tables/model_flops_params.csv, or any name with the sizes below
    params           parameters of a network by its totals, with
    gflop            GFLOPs of one example's forward pass
    hidden, layers, heads, seq, vocab    sizes of a decoder; heads of 64 numbers, 2048, 51200
    layers           of a network by its totals that is cut into stages: so many equal ones; as many as stages
    gpus             devices; dp x pp x tp
    dp, pp, tp       replicas, stages, width; 1, and as many replicas as devices are left
    global_batch, batch_per_gpu          one of them; the latter is of a replica
    micro_batch      examples of a micro-batch; 1 with stages
    interleave       chunks of the model on a device; 1
    schedule         1f1b or gpipe; 1f1b, and gpipe of gpipe
    recompute        none, selective, full, stage; none, and stage of gpipe
    sequence         yes or no; no
    zero             stage of ZeRO, 0 to 3; 0, and 3 of fsdp
    dtype            float16, bfloat16, mixed_float16, tf32, float32; float16 of a decoder, else float32
    system           one of reason.simulator.runtime.SYSTEMS; colonnade
    bucket_mb        size of its messages; what the system has by default
    reduce           order, ring, tree, scatter, hierarchical, host; ring, and order of colonnade
    card             as its driver calls it, such as Tesla V100-SXM2-16GB; of one that is not listed in
                     describe/speeds.csv the pace is all that is known
    machine          a recorded machine, for its links; or
    link             between any two cards of a machine, such as NV12 or PIX; PIX
    per_machine      cards of a machine; 8
    network          rate of an adapter between machines; 100Gb
    adapters         of a machine; 1
    step_s, step_ms, examples_per_s      what was measured: one of them, or
    memory_gb, states_gb                 10^9 bytes on the fullest device; without activations
    verified         rows with "no" are left out
    calibrates       "yes" for the row that sets the pace of its series; otherwise the one with fewest devices
    series           rows that share a pace; the same model, batch of a device, card, system and dtype

The pace of a series is what one measured step says of the parts that nobody published: how near a model comes
to the rate of large products. A decoder has one pace for all sizes and batches. The row that calibrates does
not count. Memory needs no pace.
"""

import csv
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from math import isfinite
from pathlib import Path
from typing import Any

import platforms
import tables
from report import Row

from colonnade.describe import speeds
from colonnade.describe.layer_cost import LayerCost
from colonnade.describe.link import Device
from colonnade.describe.plan import Plan
from colonnade.describe.topology import Topology
from colonnade.describe.workload import Workload
from colonnade.errors import InvalidArgument, Problem, check
from colonnade.reason.simulator.calibrate import calibrated
from colonnade.reason.simulator.layer_time import STRICT
from colonnade.reason.simulator.memory_need import needs
from colonnade.reason.simulator.runtime import SYSTEMS, Runtime
from colonnade.reason.simulator.simulate import simulate

# In published tables float32 means 32 bits; TensorFlow rounds to TF32 where a card can do that.
DTYPES = {"float32": STRICT, "fp32": STRICT, "tf32": "float32", "fp16": "float16", "bf16": "bfloat16"}
SHARDED = ((), ("slots",), ("slots", "gradients"), ("slots", "gradients", "parameters"))
MEASURED = {"step_s": 1.0, "step_time_s": 1.0, "step_ms": 1e-3}
TIMES = frozenset((*MEASURED, "examples_per_s"))
MEMORY = ("memory_gb", "states_gb")
# Numbers that are whole, and those that need not be; all are above 0.
AXES = ("dp", "pp", "tp")
COUNTS = frozenset(
    (*AXES, "gpus", "hidden", "layers", "heads", "seq", "vocab", "global_batch", "batch_per_gpu")
)
COUNTS |= {"micro_batch", "interleave", "per_machine", "adapters"}
NUMBERS = TIMES | {"params", "gflop", "bucket_mb", *MEMORY}
WORDS = frozenset(("model", "schedule", "recompute", "sequence", "zero", "dtype", "system", "reduce", "card"))
WORDS |= {"machine", "link", "network", "verified", "calibrates", "series"}
COLUMNS = COUNTS | NUMBERS | WORDS
BESIDE = frozenset(("source", "note", "platform"))
# FLOP/s of a card that is not listed: any will do, as the pace makes up for it.
UNLISTED = 1e13

Cells = Mapping[str, str]


def predicted(path: Path) -> Iterator[Row]:
    """Every row of a table, measured and predicted."""
    listed = _read(path)
    groups: dict[Any, list[tuple[int, Cells]]] = {}
    for number, row in listed:
        if TIMES & row.keys():
            groups.setdefault(_series(row), []).append((number, row))
    for group in groups.values():
        told = [pair for pair in group if pair[1].get("calibrates") == "yes"]
        at, first = told[0] if told else min(group, key=lambda pair: _devices(pair[1]))
        pace = _at(at, _pace, first)
        for number, row in group:
            step = _at(number, _step, row, pace)
            note = "calibrates" if row is first else ""
            yield Row(path.stem, _case(row), _seconds(row), step, counted=row is not first, note=note)
    for number, row in listed:
        for name in MEMORY:
            if name in row:
                case, measured = f"{_case(row)}, {name[:-3]}", float(row[name])
                yield Row(path.stem, case, measured, _at(number, _gigabytes, row, name), "GB")


def _read(path: Path) -> list[tuple[int, Cells]]:
    """The rows that count, without empty cells, beside their lines; whole numbers as digits."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(
            "--table", [Problem("file", str(path), f"cannot be read ({error})", "Name a CSV file")]
        ) from None
    rows = []
    for number, cells in enumerate(csv.DictReader(text.splitlines()), 2):
        known = {name or "": value for name, value in cells.items() if value}
        row = {name: value if isinstance(value, list) else value.strip() for name, value in known.items()}
        if row.get("verified") != "no":
            rows.append((number, row))
    check("--table", [problem for number, row in rows for problem in _problems(number, row)])
    if not rows:
        raise InvalidArgument("--table", [Problem("file", str(path), "has no rows", "Add one for each step")])
    for _, row in rows:
        row |= {name: str(int(float(row[name]))) for name in COUNTS & row.keys()}
    return rows


def _at(number: int, does: Any, *given: Any) -> float:
    """What a function says of a row; an error says on which line that is."""
    try:
        return float(does(*given))
    except InvalidArgument as error:
        problems = [replace(p, argument=f"line {number}: {p.argument}") for p in error.problems]
        raise InvalidArgument("--table", problems) from None


def _pace(row: Cells) -> float:
    return calibrated(topology(row), workload(row), plan(row), _seconds(row), _runtime(row)).pace


def _step(row: Cells, pace: float) -> float:
    work = replace(workload(row), pace=pace)
    return simulate(topology(row), work, plan(row), _runtime(row), events=False).step


def _gigabytes(row: Cells, name: str) -> float:
    found = needs(workload(row), plan(row))
    states = max(need.parameters + need.gradients + need.slots for need in found)
    return (states if name == "states_gb" else max(need.total for need in found)) / 1e9


def workload(row: Cells) -> Workload:
    """What a step of this row costs."""
    named = row.get("dtype", "float16" if "hidden" in row else "float32")
    dtype = DTYPES.get(named, named)
    batch = _batch(row)
    if "hidden" in row:
        hidden = int(row["hidden"])
        return Workload.transformer(
            hidden=hidden,
            layers=int(row["layers"]),
            heads=int(row.get("heads", max(1, hidden // tables.HEAD))),
            sequence=int(row.get("seq", 2048)),
            vocabulary=int(row.get("vocab", 51200)),
            batch=batch,
            dtype=dtype,
        )
    known = {} if "params" in row else tables.sizes()[tables.plain(row["model"])]
    parameters = round(float(row.get("params") or known["params"]))
    flops = 1e9 * float(row.get("gflop") or known["gflop_fwd"])
    if _axes(row)[1] > 1:  # equal layers, which is all that is known; what they hand on costs nothing
        count = int(row.get("layers", _axes(row)[1]))
        each = LayerCost("layer", flops / count, 4 * parameters // count, activations=2, output=1)
        return Workload.of([each] * count, batch=batch, dtype=dtype, slots=4 * parameters, fits_known=False)
    return Workload.convnet(
        parameters=parameters,
        flops=flops,
        batch=batch,
        dense={tables.plain(m): part for m, part in tables.DENSE.items()}.get(
            tables.plain(row.get("model", "")), 0.0
        ),
        dtype=dtype,
    )


def plan(row: Cells) -> Plan:
    """Who does what: width inside a machine, then replicas, then stages, as Megatron does."""
    data, stage, width = _axes(row)
    batch, blocks = _batch(row), int(row.get("layers", 0))
    dealt = stage > 1 and "hidden" in row  # blocks evenly, beside the embedding and the head
    piped = row.get("system") == "gpipe"
    each = int(row.get("micro_batch", 1 if stage > 1 else batch // data))
    chunks = int(row.get("interleave", 1))
    order = ((s * data + d) * width + w for d in range(data) for s in range(stage) for w in range(width))
    stages = stage * chunks
    sharded = SHARDED[int(row.get("zero", 3 if row.get("system") == "fsdp" else 0))]
    return Plan(
        batch=batch,
        data=data,
        stage=stage,
        width=width,
        devices=tuple(order),
        layers=(0, *(k * stages // blocks for k in range(blocks)), stages - 1) if dealt else None,
        chunks=chunks,
        schedule=row.get("schedule", "gpipe" if piped else "1f1b"),
        micro_batches=max(1, batch // data // each),
        recompute=row.get("recompute", "stage" if piped else "none"),
        sequence=row.get("sequence") == "yes",
        variables="partitioned" if sharded and data > 1 else "mirrored",
        sharded=sharded if data > 1 else (),
        reduce=row.get("reduce", "order" if row.get("system", "colonnade") == "colonnade" else "ring"),
    )


def topology(row: Cells) -> Topology:
    """The machines of a row; as many as its devices need."""
    return _topology(
        row["card"],
        row.get("machine", ""),
        row.get("link", "PIX"),
        int(row.get("per_machine", 8)),
        _devices(row),
        row.get("network", "100Gb"),
        int(row.get("adapters", 1)),
    )


@cache
def _topology(
    card: str, machine: str, link: str, each: int, count: int, network: str, adapters: int
) -> Topology:
    if machine:
        links = platforms.detect(platforms.recorded(machine)).topology.links
        box = Topology(tuple(_device(card) for _ in links), links)
    else:
        kinds = [["X" if i == j else link for j in range(each)] for i in range(each)]
        box = Topology.build([_device(card)] * each, kinds)
    machines = -(-count // len(box))
    return box if machines == 1 else Topology.machines(box, machines, network=network, adapters=adapters)


def _device(card: str) -> Device:
    return Device(card, flops=None if speeds.flops(card) else UNLISTED)


def _runtime(row: Cells) -> Runtime:
    system = SYSTEMS[row.get("system", "colonnade")]
    # The update is in the step that was measured, and so in the pace.
    system = replace(system, update=False)
    return replace(system, bucket=round(float(row["bucket_mb"]) * 2**20)) if "bucket_mb" in row else system


def _axes(row: Cells) -> tuple[int, int, int]:
    stage, width = int(float(row.get("pp", 1))), int(float(row.get("tp", 1)))
    data = float(row["dp"]) if "dp" in row else float(row["gpus"]) // (stage * width)
    return int(data), stage, width


def _devices(row: Cells) -> int:
    data, stage, width = _axes(row)
    return data * stage * width


def _batch(row: Cells) -> int:
    if "global_batch" in row:
        return int(row["global_batch"])
    return int(row["batch_per_gpu"]) * _axes(row)[0]


def _seconds(row: Cells) -> float:
    for name, unit in MEASURED.items():
        if name in row:
            return unit * float(row[name])
    return _batch(row) / float(row["examples_per_s"])


def _series(row: Cells) -> Any:
    if "series" in row:
        return row["series"]
    alike = tuple(row.get(name) for name in ("card", "system", "dtype"))
    return (
        alike
        if "hidden" in row
        else (*alike, row.get("model"), row.get("params"), _batch(row) / _axes(row)[0])
    )


def _case(row: Cells) -> str:
    data, stage, width = _axes(row)
    layout = f"{data} x {stage} x {width}" if stage * width > 1 else f"{data} replicas"
    zero = f", ZeRO {row['zero']}" if row.get("zero", "0") != "0" else ""
    model = row.get("model") or f"{row.get('hidden', row.get('params'))}"
    return f"{model}, {row.get('system', 'colonnade')}, {layout}, batch {_batch(row)}{zero}"


def _problems(number: int, row: Cells) -> Iterator[Problem]:
    """What is wrong with a row; numbers count lines of the file."""
    at = f"line {number}"
    for name in row.keys() - COLUMNS - BESIDE:
        if name:
            yield Problem(at, name, "is no column here", "Rename it, or leave it out")
        else:
            yield Problem(at, row[name], "are more cells than there are columns", "Quote what has commas")
    wrong = {name for name in (COUNTS | NUMBERS) & row.keys() if not _good(name, row[name])}
    for name in sorted(wrong):
        kind = "a whole number from 1 up" if name in COUNTS else "a number above 0"
        yield Problem(at, f"{name}={row[name]}", f"must be {kind}", "Correct it, or leave it out")
    for name, known in (("system", SYSTEMS), ("zero", "0123")):
        if row.get(name, known and next(iter(known))) not in known:
            yield Problem(at, f"{name}={row[name]}", "is not known", f"One of: {', '.join(known)}")
    if not (TIMES | set(MEMORY)) & row.keys():
        yield Problem(
            at, "", "has nothing that was measured", "Add step_s, step_ms, examples_per_s or memory_gb"
        )
    if (
        "hidden" not in row
        and "params" not in row
        and tables.plain(row.get("model", "")) not in tables.sizes()
    ):
        rule = "is a model whose sizes are not known"
        yield Problem(at, row.get("model"), rule, "Add params and gflop, or hidden and layers")
    elif "hidden" not in row and "params" in row and "gflop" not in row:
        yield Problem(at, row.get("params"), "has parameters and no FLOPs", "Add gflop")
    if "hidden" in row and "layers" not in row:
        yield Problem(at, row["hidden"], "has a width and no number of layers", "Add layers")
    if "gpus" not in row and "dp" not in row:
        yield Problem(at, "", "does not say how many devices", "Add gpus, or dp")
    elif not wrong & {"gpus", *AXES} and "gpus" in row and _devices(row) != float(row["gpus"]):
        rule = f"are not data x stage x width, which are {_devices(row)}"
        yield Problem(at, f"gpus={row['gpus']}", rule, "Correct gpus, dp, pp or tp")
    if "hidden" not in row and "tp" not in wrong and float(row.get("tp", 1)) > 1:
        rule = "splits layers, and of a network by its totals nobody knows how"
        yield Problem(at, f"tp={row['tp']}", rule, "Give the sizes of a decoder")
    if "global_batch" not in row and "batch_per_gpu" not in row:
        yield Problem(at, "", "has no batch", "Add global_batch or batch_per_gpu")
    if "card" not in row:
        yield Problem(at, "", "has no card", "Add card, as its driver calls it")


def _good(name: str, text: str) -> bool:
    try:
        value = float(text)
    except ValueError:
        return False
    return isfinite(value) and value > 0 and (name not in COUNTS or value.is_integer())
