"""Predicts steps of many micro-batches from two shorter ones, so that thousands of layouts can be compared.

Once all stages are at work a pipeline does the same for every micro-batch, so whatever a step costs grows in
proportion. The plan that is chosen in the end is simulated as a whole.
"""

from dataclasses import fields
from typing import Any

from colonnade.describe.fields import LARGEST
from colonnade.describe.plan import Plan, Prediction, even_stages, spans
from colonnade.describe.topology import Topology
from colonnade.describe.workload import Workload
from colonnade.reason.simulator.memory_need import needs
from colonnade.reason.simulator.runtime import Runtime
from colonnade.reason.simulator.simulate import simulate
from colonnade.reason.simulator.stages import exchanged_bytes

# A step of more tasks than this is predicted from shorter ones.
LONG = 2**10
# And one of more than this also where micro-batches are not equal.
UNEVEN = 2**14


def predicted(
    topology: Topology, workload: Workload, plan: Plan, runtime: Runtime, alone: float
) -> Prediction:
    """Of a plan, as `simulate` would predict it; `alone` are the seconds of the batch on one device."""
    stages = plan.stage * plan.chunks
    short = plan.stage * max(2 * plan.chunks, LONG // (2 * stages * plan.stage))
    even = plan.batch % (plan.data * plan.micro_batches) == 0
    longest = LONG if even else UNEVEN
    if plan.micro_batches * stages <= longest or plan.micro_batches <= short + plan.stage:
        return simulate(topology, workload, plan, runtime, events=False).prediction(plan, alone)
    first, second = (
        _of(topology, workload, _shorter(plan, number), runtime) for number in (short, short + plan.stage)
    )
    more = (plan.micro_batches - short) / plan.stage
    grown: dict[str, Any] = {
        name: value + more * (second[name] - value) for name, value in first.items() if name != "memory_known"
    }
    whole = {"moved": round(grown["moved"]), "memory": max(need.total for need in needs(workload, plan))}
    # Over a link goes what all micro-batches hand on or exchange, or the gradients, whichever is most.
    cuts = spans(plan.layers or even_stages(len(workload.layers), stages), stages)
    handed = max((workload.layers[end - 1].output for _, end in cuts[:-1]), default=0)
    handed = handed * plan.batch // plan.data // (plan.width if plan.sequence else 1)
    exchanged = exchanged_bytes([workload.layers[b:e] for b, e in cuts], plan, runtime.wire)
    whole["busiest"] = round(max(second["busiest"], handed, exchanged))
    step = grown["step"]
    # Of what the jitter draws a longer step may have less than none; what is left of a step is waiting.
    parts = {name: max(0.0, grown[name]) for name in ("compute", "reduction", "update", "overhead")}
    parts["waiting"] = max(0.0, step - sum(parts.values()))
    return Prediction(
        **{**grown, **whole, **parts},
        examples_per_second=min(plan.batch / step, LARGEST) if step else 0.0,
        efficiency=alone / (plan.num_devices * step) if step else 0.0,
        memory_known=workload.fits_known,
    )


def _shorter(plan: Plan, micro_batches: int) -> Plan:
    """With fewer micro-batches of the same size."""
    examples = round(plan.batch * micro_batches / plan.micro_batches)
    return plan.with_(micro_batches=micro_batches, batch=max(plan.data * micro_batches, examples))


def _of(topology: Topology, workload: Workload, plan: Plan, runtime: Runtime) -> dict[str, float]:
    work = workload.with_batch(plan.batch)
    found = simulate(topology, work, plan, runtime, events=False).prediction(plan, 0.0)
    derived = ("examples_per_second", "efficiency")
    return {f.name: getattr(found, f.name) for f in fields(found) if f.name not in derived}
