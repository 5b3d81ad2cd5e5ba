from dataclasses import asdict, replace

import pytest
from workloads import cards, drawn, virtual

from colonnade.describe.layer_cost import LayerCost, Timing
from colonnade.describe.plan import Plan
from colonnade.describe.workload import Workload
from colonnade.reason.planning.long_pipelines import LONG, predicted
from colonnade.reason.simulator.runtime import ENGINE
from colonnade.reason.simulator.simulate import simulate


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("link", ["NV2", "SYS"])
def test_long_steps_are_told_as_if_all_of_them_was_simulated(seed, link):
    box, work = cards(8, link), replace(drawn(seed, most_layers=12), batch=16 * LONG)
    stage = min(len(work.layers), 4)
    for schedule in ("1f1b", "gpipe"):
        plan = Plan(batch=work.batch, data=2, stage=stage, micro_batches=LONG, schedule=schedule)
        whole = simulate(box, work, plan, events=False).prediction(plan, 1.0)
        quick = predicted(box, work, plan, ENGINE, 1.0)
        # Seconds by the step: what the jitter draws of it is another part of a shorter one.
        for name, value in asdict(whole).items():
            seconds = name in ("compute", "waiting", "reduction", "update", "overhead")
            near = pytest.approx(value, abs=1e-3 * whole.step if seconds else 0.0, rel=2e-3)
            assert getattr(quick, name) == near, name


def test_long_steps_of_unequal_micro_batches_are_told_too():
    box, work = cards(2), replace(drawn(5), batch=40_001)
    plan = Plan(batch=work.batch, stage=2, micro_batches=10_000)
    whole = simulate(box, work, plan, events=False)
    quick = predicted(box, work, plan, ENGINE, 1.0)
    assert quick.step == pytest.approx(whole.step, rel=1e-3)
    assert quick.memory == whole.memory


def test_what_layers_that_are_split_exchange_goes_over_links():
    box = cards(4)
    wide = LayerCost("wide", output=8, exchanged=1000, exchanges=2, timings=(Timing(8, 1e-3, 2e-3),))
    work = Workload.of([wide] * 4, batch=16 * LONG)
    for stage, number in ((1, 1), (2, 8), (2, LONG)):
        plan = Plan(batch=work.batch, data=1, stage=stage, width=2, micro_batches=number)
        done = simulate(box, work, plan, events=False)
        # There and back, a layer's sums of a whole batch: a ring of two sends as much as each has.
        assert done.busiest == 2 * 1000 * work.batch * 4 // stage
        assert predicted(box, work, plan, ENGINE, 1.0).busiest == done.busiest
        assert done.moved >= done.busiest


def test_short_steps_are_simulated():
    box, work = virtual(4, 2), drawn(3)
    plan = Plan(batch=work.batch, data=2)
    assert predicted(box, work, plan, ENGINE, 1.0) == simulate(box, work, plan).prediction(plan, 1.0)
