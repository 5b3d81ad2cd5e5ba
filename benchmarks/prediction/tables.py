"""A function per published table: it calibrates on the row of one device and predicts the others."""

import csv
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from statistics import median

import platforms
from report import Row

from colonnade.describe.layer_cost import LayerCost, Timing
from colonnade.describe.plan import Plan
from colonnade.describe.topology import Topology
from colonnade.describe.workload import Workload
from colonnade.reason.simulator.calibrate import calibrated
from colonnade.reason.simulator.memory_need import needs
from colonnade.reason.simulator.runtime import DDP, GPIPE, GRAPH, MEGATRON, Runtime
from colonnade.reason.simulator.simulate import simulate
from colonnade.reason.transfers.cost import all_reduce, group_of

TABLES = Path(__file__).parent / "tables"
GIB = 2**30
# The part of the parameters that is in dense layers: VGG16 has 123.6 of 138.4 million there, AlexNet 58.6
# of 61.1.
DENSE = {"VGG16": 0.893, "AlexNet": 0.959}
# Heads are not in the tables of transformers; 64 numbers each is what most have.
HEAD = 64


def read(table: str) -> list[dict[str, str]]:
    with (TABLES / f"{table}.csv").open(encoding="utf-8") as file:
        return [row for row in csv.DictReader(file) if row["verified"] == "yes"]


def plain(model: str) -> str:
    return model.lower().replace("-", "")


def sizes() -> dict[str, dict[str, str]]:
    return {plain(row["model"]): row for row in read("model_flops_params")}


def network(model: str, batch: int) -> Workload:
    """A convolutional network by its published totals."""
    known = sizes()[plain(model)]
    return Workload.convnet(
        parameters=int(known["params"]),
        flops=1e9 * float(known["gflop_fwd"]),
        batch=batch,
        dense=DENSE.get(model, 0.0),
        name=model,
    )


def data_parallel(
    table: str,
    rows: Sequence[dict[str, str]],
    topology: Topology,
    runtime: Runtime,
    model: str,
    reduce: str,
    *,
    counted: bool = True,
) -> Iterator[Row]:
    """Rows of one model with the same batch per device: the first, on one device, sets the pace."""
    each = int(rows[0]["batch_per_gpu"])
    seconds = [float(row.get("step_time_s") or row["sec_per_iter"]) for row in rows]
    one = calibrated(topology, network(model, each), Plan(batch=each), seconds[0], runtime)
    for row, took in zip(rows, seconds, strict=True):
        n = int(row["gpus"])
        step = simulate(
            topology, one.with_batch(n * each), Plan(batch=n * each, data=n, reduce=reduce), runtime
        ).step
        case = f"{row['model']}, {n} x {each}" + (f", {row['data']} data" if "data" in row else "")
        yield Row(table, case, took, step, counted=counted and n > 1, note="calibrates" if n == 1 else "")


def tf_benchmarks_2017() -> Iterator[Row]:
    """Eight P100; parameters on the processor, or copies of them and NCCL."""
    table = "tf_benchmarks_2017"
    key = lambda r: (r["data"], r["model"], int(r["batch_per_gpu"]))  # noqa: E731
    for (data, model, _), rows in groupby(sorted(read(table), key=lambda r: (*key(r), int(r["gpus"]))), key):
        listed = list(rows)
        host = listed[0]["variable_update"] == "parameter_server"
        # What reading and decoding real images takes is not in the row of one device.
        title = table if data == "synthetic" else f"{table}, real images"
        yield from data_parallel(
            title, listed, platforms.dgx1_p100(), GRAPH, model, "host" if host else "ring"
        )


def pytorch_ddp_bench() -> Iterator[Row]:
    """Two machines of eight V100; the jitter is fitted here, so its rows are not counted."""
    yield from ddp_rows(DDP)


def ddp_rows(runtime: Runtime) -> Iterator[Row]:
    table = "pytorch_ddp_bench"
    rows = [row for row in read(table) if row["layout"] != "no ddp"]
    key = lambda r: (int(r["bucket_cap_mb"]), r["model"])  # noqa: E731
    for (bucket, model), listed in groupby(sorted(rows, key=lambda r: (*key(r), int(r["gpus"]))), key):
        adjusted = replace(runtime, bucket=bucket * 2**20)
        yield from data_parallel(
            table, list(listed), platforms.v100_machines(2, 4), adjusted, model, "ring", counted=False
        )


def fitted_jitter() -> float:
    """The jitter at which the rows of DDP have the smallest median error, to half a percent."""
    choices = [0.005 * i for i in range(13)]

    def off(jitter: float) -> float:
        rows = [row for row in ddp_rows(replace(DDP, jitter=jitter)) if not row.note]
        return median(abs(row.error) for row in rows)

    return min(choices, key=off)


def megatron_plan(row: dict[str, str], micro_batch: int, **more: object) -> Plan:
    """Megatron's order of devices: width inside, then data, then stages; blocks dealt out evenly."""
    dp, tp, pp = (int(row[axis]) for axis in ("dp", "tp", "pp"))
    batch, blocks = int(row["global_batch"]), int(row["layers"])
    chunks = int(row.get("interleave") or 1)
    devices = tuple((s * dp + d) * tp + w for d in range(dp) for s in range(pp) for w in range(tp))
    stages = pp * chunks
    layers = (0, *(k * stages // blocks for k in range(blocks)), stages - 1)
    parts = max(1, batch // dp // micro_batch)
    return Plan(
        batch=batch,
        data=dp,
        stage=pp,
        width=tp,
        devices=devices,
        layers=layers,
        chunks=chunks,
        micro_batches=parts if pp > 1 else 1,
        reduce="ring",
        **{"recompute": "full", **more},
    )


def decoder(row: dict[str, str], heads: int | None = None) -> Workload:
    hidden = int(row["hidden"])
    return Workload.transformer(
        hidden=hidden,
        layers=int(row["layers"]),
        heads=heads or hidden // HEAD,
        sequence=int(row.get("seq") or 2048),
        vocabulary=int(row.get("vocab") or 51200),
        batch=int(row["global_batch"]),
    )


def dlperf_gpt_3d_parallel_v100() -> Iterator[Row]:
    """Four machines of eight V100 with one adapter; the larger model on one device calibrates."""
    table = "dlperf_gpt_3d_parallel_v100"
    rows = read(table)
    first = rows[0]
    topology = platforms.v100_machines(4)
    # Micro-batches are not published; they are taken as large as the batch of the row of one device.
    micro = int(first["global_batch"])
    one = calibrated(
        topology, decoder(first), megatron_plan(first, micro), float(first["megatron_step_s"]), MEGATRON
    )
    for row in rows:
        step = simulate(
            topology, replace(decoder(row), pace=one.pace), megatron_plan(row, micro), MEGATRON
        ).step
        measured = float(row["megatron_step_s"])
        yield Row(
            table,
            row["case"],
            measured,
            step,
            counted=row is not first,
            note="calibrates" if row is first else "",
        )


def a100_pace() -> float:
    """From the smallest row of Megatron's weak scaling, which has no stages and no width."""
    row = read("megatron_a100_weak_scaling")[0]
    topology = platforms.selene(int(row["gpus"]) // 8)
    plan = megatron_plan(row, 1)
    seconds = float(row["step_time_s_derived"])
    return calibrated(topology, decoder(row, int(row["heads"])), plan, seconds, MEGATRON).pace


def megatron_a100_weak_scaling() -> Iterator[Row]:
    """Machines of eight A100; the row without stages and width calibrates."""
    table = "megatron_a100_weak_scaling"
    pace = a100_pace()
    for i, row in enumerate(read(table)):
        topology = platforms.selene(int(row["gpus"]) // 8)
        work = replace(decoder(row, int(row["heads"])), pace=pace)
        step = simulate(topology, work, megatron_plan(row, 1), MEGATRON).step
        case = f"{row['params_b']}B, {row['dp']} x {row['pp']} x {row['tp']}"
        yield Row(
            table,
            case,
            float(row["step_time_s_derived"]),
            step,
            counted=i > 0,
            note="" if i else "calibrates",
        )


RECOMPUTING = {
    "full recompute": ("full", False),
    "full": ("full", False),
    "sequence parallel + selective recompute": ("selective", True),
    "seq+selective": ("selective", True),
    "selective": ("selective", False),
    "sequence parallel": ("none", True),
    "no recompute": ("none", False),
    "none": ("none", False),
    "any": ("none", False),
}


def megatron_activation_recompute() -> Iterator[Row]:
    """Times at the pace of the other table of A100; memory of the blocks alone, as the source counts it."""
    table = "megatron_activation_recompute"
    pace = a100_pace()
    for row in read(table):
        row = {**row, "dp": "1"}
        recompute, sequence = RECOMPUTING[row["mode"]]
        plan = megatron_plan(row, int(row["microbatch"]), recompute=recompute, sequence=sequence)
        work = replace(decoder(row, int(row["heads"])), pace=pace)
        case = f"{row['model']}, {row['mode']}: {row['quantity']}"
        measured = float(row["value"])
        if row["quantity"] == "iteration_time_s":
            topology = platforms.selene(-(-int(row["gpus"]) // 8))
            yield Row(f"{table}, time", case, measured, simulate(topology, work, plan, MEGATRON).step)
            continue
        # Gradients in 32 bits: 2 + 4 + 12 bytes for a parameter.
        blocks = work.layers[1:-1]
        count = sum(layer.parameters for layer in blocks) // 2
        work = replace(work, layers=blocks, gradients=4 * count, slots=12 * count)
        plan = replace(plan, layers=None)
        need = needs(work, plan)[0]
        whole = needs(work, replace(plan, recompute="none", sequence=False))[0]
        predicted, unit = {
            "param+optimizer_GiB_per_gpu": ((need.parameters + need.gradients + need.slots) / GIB, "GiB"),
            "activations_GiB_per_gpu": (need.activations / GIB, "GiB"),
            "activation_pct_of_TP_baseline": (100 * need.activations / whole.activations, "%"),
        }[row["quantity"]]
        yield Row(f"{table}, memory", case, measured, predicted, unit, counted=measured != 100)


def gpipe_speedup() -> Iterator[Row]:
    """Throughput against two partitions; equal layers, and messages that cost nothing."""
    table = "gpipe_speedup"
    layer = LayerCost("block", activations=2, output=1, timings=(Timing(1, 1.0, 2.0),))
    work = Workload.of([layer] * 16, batch=256)

    def rate(partitions: int, micro_batches: int) -> float:
        plan = Plan(
            batch=256, stage=partitions, micro_batches=micro_batches, schedule="gpipe", recompute="stage"
        )
        return 256 / simulate(Topology.uniform(partitions), work, plan, GPIPE).step

    for device, rows in groupby(read(table), lambda r: r["device"]):
        listed = list(rows)
        base = rate(int(listed[0]["partitions"]), int(listed[0]["micro_batches"]))
        for i, row in enumerate(listed):
            k, m = int(row["partitions"]), int(row["micro_batches"])
            case = f"{device.split(' ')[0]}, {k} partitions, {m} micro-batches"
            measured = float(row["normalized_throughput"])
            yield Row(
                table, case, measured, rate(k, m) / base, "x", counted=i > 0, note="" if i else "calibrates"
            )


def gpipe_memory() -> Iterator[Row]:
    """Model memory of all rows; activations of the transformers, whose layers are equal."""
    table = "gpipe_memory"
    pace: float | None = None
    for row in read(table):
        count = round(float(row["params"]))
        stages = int(row["config"].split("-")[1]) if "-" in row["config"] else 1
        layers = int(row["model"].split("-")[-1]) if row["model"].startswith("Transformer") else 4 * stages
        # RMSProp: a parameter, its gradient and one slot, in 32 bits.
        block = LayerCost("block", parameters=4 * count // layers, activations=32, output=1)
        work = Workload.of([block] * layers, batch=128, slots=4 * count)
        plan = Plan(batch=128, stage=stages, micro_batches=32, schedule="gpipe", recompute="stage")
        found = needs(work, plan)
        kept = sum(need.parameters + need.gradients + need.slots for need in found) / GIB
        case = f"{row['model']}, {row['config']}"
        swapped = row["model"] == "Transformer-3"
        note = "12 bytes a parameter give what the table has as activations" if swapped else ""
        yield Row(f"{table}, model", case, float(row["model_memory_gb"]), kept, "GiB", note=note)
        if row["model"].startswith("Transformer") and not swapped:
            activations = sum(need.activations + need.working for need in found)
            measured = float(row["peak_activation_gb"])
            calibrates = pace is None
            pace = pace or measured / activations
            note = "calibrates" if calibrates else ""
            yield Row(
                f"{table}, activations", case, measured, pace * activations, "GiB", not calibrates, note
            )


def zero_memory() -> Iterator[Row]:
    """Mixed precision with Adam; what is divided among the replicas follows from the stage of ZeRO."""
    table = "zero_memory"
    stages = {
        "Pos": ("slots",),
        "Pos+g": ("slots", "gradients"),
        "Pos+g+p": ("slots", "gradients", "parameters"),
    }
    for row in read(table):
        count, n = round(float(row["params"])), int(row["dp_degree"])
        work = Workload.of([("all", 1.0, 2 * count)], batch=n, dtype="float16", slots=12 * count)
        plan = Plan(batch=n, data=n, variables="partitioned", sharded=stages[row["stage"]])
        case = f"{row['model']}, {row['stage']}, {n}"
        yield Row(table, case, float(row["gb_per_device"]), needs(work, plan)[0].total / 1e9, "GB")


METHODS: dict[str, tuple[str, Runtime]] = {
    "Data-Parallel": ("synchronous", Runtime("simulated", bucket=0)),
    # What is sent beside training was read off the rows of this very table: the backward pass before a
    # join, and with overlap one step more. So these rows show that such a system can be simulated, and do
    # not count.
    "DiLoCo H=100": ("diloco", Runtime("simulated", bucket=0, delay=2 / 3)),
    "Streaming DiLoCo H=100": ("diloco", Runtime("simulated", bucket=0, delay=2 / 3, fragments=8)),
    "Streaming DiLoCo overlapped": ("diloco", Runtime("simulated", bucket=0, delay=5 / 3, fragments=8)),
    "Streaming DiLoCo overlapped FP4": (
        "diloco",
        Runtime("simulated", bucket=0, delay=5 / 3, fragments=8, wire=0.25),
    ),
}


def diloco_bandwidth_for_utilization() -> Iterator[Row]:
    """The network at which devices are at work for a part of the time; found by halving."""
    table = "diloco_bandwidth_for_utilization"
    for row in read(table):
        seconds = float(row["step_time_s"])
        layer = LayerCost(
            "block", parameters=2 * 10**9 // 24, timings=(Timing(2, seconds / 72, seconds / 36),)
        )
        work = Workload.of([layer] * 24, batch=4, dtype="float16")
        sync, runtime = METHODS[row["method"]]
        plan = Plan(batch=4, data=2, sync=sync, every=100 if sync == "diloco" else 1, reduce="ring")

        def busy(bits: float, work: Workload = work, plan: Plan = plan, runtime: Runtime = runtime) -> float:
            done = simulate(platforms.linked.__wrapped__(2, bits * 1e9 / 8), work, plan, runtime)
            return done.compute / done.step

        low, high = 1e-3, 1e5
        while high / low > 1.001:
            middle = (low * high) ** 0.5
            low, high = (
                (middle, high) if busy(middle) < float(row["compute_util_pct"]) / 100 else (low, middle)
            )
        case = f"{row['method']}, {row['compute_util_pct']}%"
        told = sync == "diloco"
        note = "delay read off this table" if told else ""
        yield Row(table, case, float(row["gbit_per_s_needed"]), high, "Gbit/s", not told, note)


def nccl_allreduce_sweeps() -> Iterator[Row]:
    """The ring and the tree of `reason.transfers.cost` against what eight A100 took."""
    group = group_of(platforms.nvswitch_a100(), range(8))
    for row in read("nccl_allreduce_sweeps"):
        size = int(row["bytes"])
        predicted = 1e6 * all_reduce(group, size, "best")
        yield Row("nccl_allreduce_sweeps", f"{size:,} bytes", float(row["time_us"]), predicted, "us")


ALL: tuple[Callable[[], Iterator[Row]], ...] = (
    tf_benchmarks_2017,
    pytorch_ddp_bench,
    dlperf_gpt_3d_parallel_v100,
    megatron_a100_weak_scaling,
    megatron_activation_recompute,
    gpipe_speedup,
    gpipe_memory,
    zero_memory,
    diloco_bandwidth_for_utilization,
    nccl_allreduce_sweeps,
)
