"""What a trainer makes of a plan."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import colonnade as cn
from colonnade.describe.plan import Plan, Prediction
from colonnade.describe.timeline import Event, Timeline
from colonnade.run.train import by_plan

EXPECTED = Prediction(1e-6, 1.0, 1.0, 0, 0, 0)  # which no step can keep


@pytest.mark.parametrize(
    ("plan", "sync"),
    [
        (Plan(batch=8, data=2), cn.Synchronous()),
        (Plan(batch=8, data=2, shares="measured"), cn.Synchronous(shares="measured")),
        (Plan(batch=8, data=2, sync="asynchronous", max_staleness=3), cn.Asynchronous(max_staleness=3)),
        (Plan(batch=8, data=2, sync="local", every=4), cn.LocalSGD(4)),
        (Plan(batch=8, data=2, sync="diloco", every=5), cn.DiLoCo(5)),
        (Plan(batch=8, data=2, sync="elastic", every=6, alpha=0.2), cn.Elastic(6, 0.2)),
    ],
)
def test_every_way_of_training_has_its_value(plan, sync):
    assert by_plan.sync_of(plan) == sync


def line():
    w = tf.Variable([[0.0]])
    return w, lambda x, y: tf.squeeze((x @ w - y) ** 2, axis=1)


def test_a_plan_trains_as_its_arguments_would(capsys):
    x = np.arange(8.0, dtype="float32").reshape(8, 1)
    values = []
    for options in (
        {"plan": Plan(batch=8, data=2, variables="mirrored", devices=(3, 1), predicted=EXPECTED)},
        {"devices": [3, 1], "variables": "mirrored"},
    ):
        w, loss = line()
        trainer = cn.Trainer(loss, keras.optimizers.SGD(0.01), **options)
        history = trainer.fit((x, 2 * x), batch_size=8, steps=5, log_every=10)
        values.append(float(w[0, 0]))
        assert trainer.devices == ("/device:CPU:3", "/device:CPU:1")
    assert values[0] == values[1] != 0
    assert history.predicted is not None  # without a plan, from the first batch
    assert "that were predicted" in capsys.readouterr().err


def test_a_plan_with_stages_runs_a_pipeline_made_by_it():
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [keras.Input([2]), keras.layers.Dense(4), keras.layers.Dense(4), keras.layers.Dense(1)]
    )
    plan = Plan(batch=8, data=2, stage=2, micro_batches=2, layers=(0, 1, 1), devices=(0, 1, 2, 3))
    pipeline = cn.Pipeline(model, plan=plan)
    assert pipeline.placement == (0, 1, 1)
    assert [[d[-1] for d in row] for row in pipeline.rows] == [["0", "1"], ["2", "3"]]
    loss = lambda x: tf.squeeze(pipeline(x, training=True), axis=1) ** 2  # noqa: E731
    trainer = cn.Trainer(loss, keras.optimizers.SGD(0.01), devices=pipeline, plan=plan)
    assert trainer.train_on_batch(tf.ones([8, 2])).step == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"plan": 3}, "must be a cn.Plan"),
        ({"plan": Plan(batch=8, width=2)}, "cannot be run"),
        ({"plan": Plan(batch=8, data=2, devices=(0, 8))}, "is for device 8, and there are 8 here"),
        ({"plan": Plan(batch=8, data=2), "devices": 2}, "settled by the plan"),
        ({"plan": Plan(batch=8, data=2), "sync": cn.Synchronous()}, "settled by the plan"),
        ({"plan": Plan(batch=8, data=2), "variables": "shared"}, "settled by the plan"),
        ({"plan": Plan(batch=8, stage=2, micro_batches=2)}, "the loss must call a pipeline"),
    ],
)
def test_plans_that_a_trainer_cannot_run(options, said):
    with pytest.raises(cn.InvalidArgument, match=said):
        cn.Trainer(line()[1], keras.optimizers.SGD(0.01), **options)


def test_what_is_wrong_beside_the_plan_is_told_with_it():
    with pytest.raises(cn.InvalidArgument) as error:
        cn.Trainer("loss", keras.optimizers.SGD(0.01), plan=Plan(batch=8, width=2), on_nan="shrug")
    assert {problem.argument for problem in error.value.problems} == {"loss", "plan", "on_nan"}


def test_another_pipeline_than_that_of_the_plan_is_refused():
    plan = Plan(batch=8, stage=2, micro_batches=2)
    pipeline = cn.Pipeline([tf.identity, tf.identity], 2, micro_batches=4)
    with pytest.raises(cn.InvalidArgument, match="another pipeline"):
        cn.Trainer(lambda x: pipeline(x), keras.optimizers.SGD(0.01), devices=pipeline, plan=plan)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"plan": "2 stages"}, "must be a cn.Plan"),
        ({"plan": Plan(batch=8, stage=2, chunks=2, micro_batches=2)}, "cannot be run"),
        ({"plan": Plan(batch=8, stage=2, micro_batches=2, devices=(0, 9))}, "is for device 9"),
        ({"plan": Plan(batch=8, stage=1, layers=(0,))}, "deals out 1 layers"),
        (
            {"plan": Plan(batch=8, stage=2, micro_batches=2), "devices": 2, "micro_batches": 2},
            "settled by the plan",
        ),
        ({"plan": Plan(batch=8, stage=2, micro_batches=2), "placement": [0, 1]}, "settled by the plan"),
    ],
)
def test_plans_that_make_no_pipeline(options, said):
    with pytest.raises(cn.InvalidArgument, match=said):
        cn.Pipeline([tf.identity, tf.identity], **options)


def test_a_timeline_has_the_names_of_devices_here():
    moved = {"kind": "reduction", "bytes": 8, "link": "device 1 -> device 0"}
    (event,) = by_plan.named_here(Timeline.of([Event("device 1", 0.0, 1.0, **moved)])).events
    assert (event.device, event.link, event.bytes) == ("CPU:1", "CPU:1 -> CPU:0", 8)
    assert by_plan.named_here(None) is None


@pytest.mark.parametrize(
    "plan",
    [
        Plan(batch=8, data=2, devices=(3, 1), variables="shared"),
        Plan(batch=8, data=2, shares="measured"),
        Plan(batch=8, data=2, sync="asynchronous", max_staleness=3, variables="shared"),
        Plan(batch=8, data=2, sync="local", every=4),
        Plan(batch=8, data=2, sync="diloco", every=5),
        Plan(batch=8, data=2, sync="elastic", every=6, alpha=0.2),
    ],
)
def test_arguments_amount_to_the_plan_that_settles_them(plan):
    settled = by_plan.settled(plan, None)
    assert by_plan.plan_of(settled.devices, settled.sync, settled.variables, 8) == plan


def test_a_batch_smaller_than_the_devices_is_for_some_of_them():
    plan = by_plan.plan_of(["/device:CPU:0", "/device:CPU:1"], cn.Synchronous(), "shared", 1)
    assert plan == Plan(batch=1, variables="shared")
    assert by_plan.plan_of(["/device:CPU:99"], cn.Synchronous(), "shared", 8) is None
