"""Predicts a table that is in a file, without code of its own: a row for each step that somebody measured.

Columns that a table does not have, or has empty in a row, are left to the rule beside them.

    model            a name of tables/model_flops_params.csv, or any name with the sizes below
    params           parameters of a network by its totals, with
    gflop            GFLOPs of one example's forward pass
    hidden, layers, heads, seq, vocab    sizes of a decoder; heads of 64 numbers, 2048, 51200
    gpus             devices; dp x pp x tp
    dp, pp, tp       replicas, stages, width; 1, and as many replicas as devices are left
    global_batch, batch_per_gpu          one of them; the latter is of a replica
    micro_batch      examples of a micro-batch; 1 with stages
    interleave       chunks of the model on a device; 1
    schedule         1f1b or gpipe; 1f1b
    recompute        none, selective, full; none
    sequence         yes or no; no
    zero             stage of ZeRO, 0 to 3; 0, and 3 of fsdp
    dtype            float16, bfloat16, mixed_float16, tf32, float32; float16 of a decoder, else float32
    system           one of reason.simulator.runtime.SYSTEMS; colonnade
    bucket_mb        size of its messages; what the system has by default
    reduce           order, ring, tree, scatter, hierarchical, host; ring, and order of colonnade
    card             as its driver calls it, such as Tesla V100-SXM2-16GB
    machine          a recorded machine, for its links; or
    link             between any two cards of a machine, such as NV12 or PIX; PIX
    per_machine      cards of a machine; 8
    network          rate of an adapter between machines; 100Gb
    adapters         of a machine; 1
    step_s, step_ms, examples_per_s      what was measured: one of them
    verified         rows with "no" are left out
    calibrates       "yes" for the row that sets the pace of its series; otherwise the one with fewest devices
    series           rows that share a pace; the same model, batch of a device, card, system and dtype

The pace of a series is what one measured step says of the parts that nobody published: how near a model comes
to the rate of large products. A decoder has one pace for all sizes and batches. The row that calibrates does
not count.
"""

import csv
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import platforms
import tables
from report import Row

from colonnade.describe.link import Device
from colonnade.describe.plan import Plan
from colonnade.describe.topology import Topology
from colonnade.describe.workload import Workload
from colonnade.errors import Problem, check
from colonnade.reason.simulator.calibrate import calibrated
from colonnade.reason.simulator.layer_time import STRICT
from colonnade.reason.simulator.runtime import SYSTEMS, Runtime
from colonnade.reason.simulator.simulate import simulate

# In published tables float32 means 32 bits; TensorFlow rounds to TF32 where a card can do that.
DTYPES = {"float32": STRICT, "fp32": STRICT, "tf32": "float32", "fp16": "float16", "bf16": "bfloat16"}
SHARDED = ((), ("slots",), ("slots", "gradients"), ("slots", "gradients", "parameters"))
MEASURED = {"step_s": 1.0, "step_time_s": 1.0, "step_ms": 1e-3}
COLUMNS = frozenset(
    [
        "model",
        "params",
        "gflop",
        "hidden",
        "layers",
        "heads",
        "seq",
        "vocab",
        "gpus",
        "dp",
        "pp",
        "tp",
        "global_batch",
        "batch_per_gpu",
        "micro_batch",
        "interleave",
        "schedule",
        "recompute",
        "sequence",
        "zero",
        "dtype",
        "system",
        "bucket_mb",
        "reduce",
        "card",
        "machine",
        "link",
        "per_machine",
        "network",
        "adapters",
        "examples_per_s",
        "verified",
        "calibrates",
        "series",
    ]
) | set(MEASURED)

Cells = Mapping[str, str]


def predicted(path: Path) -> Iterator[Row]:
    """Every row of a table, measured and predicted."""
    with path.open(encoding="utf-8") as file:
        rows = [{name: value.strip() for name, value in row.items() if value} for row in csv.DictReader(file)]
    rows = [row for row in rows if row.get("verified", "yes") != "no"]
    check("--table", [p for number, row in enumerate(rows, 2) for p in _problems(number, row)])
    groups: dict[Any, list[Cells]] = {}
    for row in rows:
        groups.setdefault(_series(row), []).append(row)
    for listed in groups.values():
        told = [row for row in listed if row.get("calibrates") == "yes"]
        first = told[0] if told else min(listed, key=_devices)
        work = workload(first)
        pace = calibrated(topology(first), work, plan(first), _seconds(first), _runtime(first)).pace
        for row in listed:
            step = simulate(
                topology(row), replace(workload(row), pace=pace), plan(row), _runtime(row), events=False
            ).step
            note = "calibrates" if row is first else ""
            yield Row(path.stem, _case(row), _seconds(row), step, counted=row is not first, note=note)


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
    return Workload.convnet(
        parameters=round(float(row.get("params") or known["params"])),
        flops=1e9 * float(row.get("gflop") or known["gflop_fwd"]),
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
        layers=(0, *(k * stages // blocks for k in range(blocks)), stages - 1) if stages > 1 else None,
        chunks=chunks,
        schedule=row.get("schedule", "1f1b"),
        micro_batches=max(1, batch // data // each),
        recompute=row.get("recompute", "none"),
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
        box = Topology(tuple(Device(card) for _ in links), links)
    else:
        kinds = [["X" if i == j else link for j in range(each)] for i in range(each)]
        box = Topology.build([Device(card)] * each, kinds)
    machines = -(-count // len(box))
    return box if machines == 1 else Topology.machines(box, machines, network=network, adapters=adapters)


def _runtime(row: Cells) -> Runtime:
    system = SYSTEMS[row.get("system", "colonnade")]
    # The update is in the step that was measured, and so in the pace.
    system = replace(system, update=False)
    return replace(system, bucket=round(float(row["bucket_mb"]) * 2**20)) if "bucket_mb" in row else system


def _axes(row: Cells) -> tuple[int, int, int]:
    stage, width = int(row.get("pp", 1)), int(row.get("tp", 1))
    data = int(row["dp"]) if "dp" in row else int(row["gpus"]) // (stage * width)
    return data, stage, width


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
    if not any(name in row for name in (*MEASURED, "examples_per_s")):
        yield Problem(at, "", "has nothing that was measured", "Add step_s, step_ms or examples_per_s")
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
    if "global_batch" not in row and "batch_per_gpu" not in row:
        yield Problem(at, "", "has no batch", "Add global_batch or batch_per_gpu")
    if "card" not in row:
        yield Problem(at, "", "has no card", "Add card, as its driver calls it")
    if row.get("system", "colonnade") not in SYSTEMS:
        yield Problem(at, row["system"], "is no system that is known", f"One of: {', '.join(SYSTEMS)}")
    for name in row.keys() - COLUMNS - {"source", "note", "platform"}:
        yield Problem(at, name, "is no column here", "Rename it, or leave it out")
