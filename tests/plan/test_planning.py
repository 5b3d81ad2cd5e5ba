import json

import keras
import pytest
import tensorflow as tf
from workloads import cards, timed

import colonnade as cn
from colonnade.describe.timeline import Timeline
from colonnade.run.plan import planning, workload


def test_a_workload_is_planned_for_the_topology_given():
    plan = cn.plan(timed([0.1], batch=64), topology=cards(4))
    assert plan.data == 4
    assert plan.predicted.step > 0


def test_a_workload_alone_is_planned_for_this_machine():
    plan = cn.plan(timed([0.1], batch=64, cores=0.5), devices=2)
    assert plan.num_devices <= 2


def test_a_loss_is_measured_and_its_plan_runs(monkeypatch, tmp_path):
    monkeypatch.setattr(workload, "SECONDS", 0.02)
    w = tf.Variable([[0.0]])

    def loss(x, y):
        return tf.squeeze((x @ w - y) ** 2, axis=1)

    x = tf.reshape(tf.range(8.0), [8, 1])
    plan = cn.plan(loss, keras.optimizers.SGD(0.01), x, 2 * x, keep={"data": 2})
    assert plan.layout == "2 replicas, shared"
    history = cn.Trainer(loss, keras.optimizers.SGD(0.01), plan=plan).fit(
        (x, 2 * x), batch_size=8, steps=5, progress=False, logdir=tmp_path
    )
    assert history.predicted == plan.predicted
    assert history.seconds_per_step > 0
    # The step that was simulated is drawn beside the real one.
    foretold = Timeline.from_json((tmp_path / "predicted.json").read_text())
    assert set(foretold.devices) == {"CPU:0", "CPU:1"}
    assert {event.kind for event in foretold.events} >= {"forward", "backward"}
    assert json.loads((tmp_path / "run.json").read_text())["predicted"]["step"] == plan.predicted.step


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((timed(), keras.optimizers.SGD()), "Pass the workload alone"),
        ((lambda x: x,), "needed to measure"),
    ],
)
def test_what_cannot_be_planned(arguments, said):
    with pytest.raises(cn.InvalidArgument, match=said):
        cn.plan(*arguments)


def test_this_machine_has_its_cores():
    assert len(planning.here(3)) == 3
    assert planning.here().devices[0].cores == len(planning.here())
