"""Sets the pace of a workload by one measured step, so that everything else is predicted from it."""

from dataclasses import replace

from colonnade.describe.plan import Plan
from colonnade.describe.topology import Topology
from colonnade.describe.workload import Workload
from colonnade.errors import InvalidArgument, Problem
from colonnade.reason.simulator.runtime import ENGINE, Runtime
from colonnade.reason.simulator.simulate import simulate

# A step's length hardly bends with the pace, so few rounds are enough for six digits.
ROUNDS = 40
# Of a pace: next to nothing. What a step takes then does not depend on it.
LEAST = 1e-9


def calibrated(
    topology: Topology, workload: Workload, plan: Plan, seconds: float, runtime: Runtime = ENGINE
) -> Workload:
    """The workload at the pace at which a step of this plan takes so many seconds.

    >>> from colonnade.describe.layer_cost import LayerCost, Timing
    >>> net = Workload.of([LayerCost("a", timings=(Timing(8, 1.0, 2.0),))], batch=8)
    >>> round(calibrated(Topology.uniform(1), net, Plan(batch=8), 6.0).pace, 6)
    2.0
    """
    if not seconds > 0:
        rule = "must be the seconds of a measured step"
        raise InvalidArgument("calibrated()", [Problem("seconds", seconds, rule, "Measure one step")])

    def step(pace: float) -> float:
        return simulate(topology, replace(workload, pace=pace), plan, runtime).step

    fixed = step(LEAST)
    if seconds <= fixed:
        rule = (
            f"is no more than what does not depend on the pace, {fixed:.3g} s: overhead, update and reduction"
        )
        fix = "Measure the step again, or correct these and the links"
        raise InvalidArgument("calibrated()", [Problem("seconds", seconds, rule, fix)])
    pace = 1.0
    for _ in range(ROUNDS):
        took = step(pace)
        if abs(took - seconds) <= 1e-9 * seconds:
            break
        slope = (step(pace * 1.01) - took) / (0.01 * pace)
        if slope <= 0:
            break
        pace = max(pace + (seconds - took) / slope, pace / 16)
    if abs(step(pace) - seconds) > 1e-3 * seconds:
        rule = f"is reached at no pace; the nearest is {step(pace):.3g} s"
        raise InvalidArgument("calibrated()", [Problem("seconds", seconds, rule, "Measure the step again")])
    return replace(workload, pace=pace)
