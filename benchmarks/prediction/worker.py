"""One model, measured alone, then predicted and measured in layouts: python worker.py KIND MODEL SECONDS."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import colonnade as cn

BENCHMARKS = Path(__file__).parent.parent
# Where one device is slower, each has a core: else the fast one would help the slow one.
cn.setup(virtual=2, threads=(1, 2)) if sys.argv[1] == "shares" else cn.setup(virtual=8)

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

from colonnade.describe.plan import Plan  # noqa: E402
from colonnade.reason.planning.planner import choose  # noqa: E402
from colonnade.reason.simulator.runtime import ENGINE  # noqa: E402
from colonnade.reason.simulator.simulate import simulate  # noqa: E402
from colonnade.run.train.devices_here import devices_here  # noqa: E402

sys.path.insert(0, str(BENCHMARKS / "throughput"))
from models import MODELS  # noqa: E402
from tasks import BATCH  # noqa: E402

ROUNDS = 4
SLOWER = 4  # times, by work


def measured(trainer, batch, guess, seconds):
    """Seconds of a step: the fastest of some rounds."""
    data = tf.data.Dataset.from_tensors(batch).repeat()
    trainer.fit(data, steps=3, prove=False, progress=False)
    steps = max(3, int(seconds / ROUNDS / guess))
    return min(
        trainer.fit(data, steps=steps, prove=False, progress=False).seconds_per_step for _ in range(ROUNDS)
    )


def of_model(name):
    keras.utils.set_random_seed(1)
    model = MODELS[name]
    x, y = (tf.constant(array[:BATCH]) for array in model.data(np.random.default_rng(0)))
    return model.build(), (x, y)


def replicas(name, seconds):
    loss, batch = of_model(name)
    work, box = cn.workload(loss, keras.optimizers.Adam(1e-3), *batch, memory=False), devices_here()
    found = {}
    for n in (1, 2, 4, 8):
        plan = Plan(batch=BATCH, data=n, variables="shared")
        guess = simulate(box, work, plan).step
        trainer = cn.Trainer(loss, keras.optimizers.Adam(1e-3), plan=plan)
        found[f"{n} replica{'s' if n > 1 else ''}"] = measured(trainer, batch, guess, seconds), guess
    return found


def slowed(loss):
    """The same loss, several times in turn on the second device: a loop, whose turns wait for each other.

    A function that can raise is traced for each device, with the device's name in the scope.
    """

    def slow_on_one(x, y):
        tf.debugging.assert_non_negative(y)
        if "CPU_1" not in tf.get_current_name_scope():
            return loss(x, y)

        def turn(k, total):
            return k + 1, total + loss(x * (1.0 + 1e-4 * tf.cast(k, x.dtype)), y) / SLOWER

        start = tf.constant(0), tf.zeros([x.shape[0]])
        return tf.while_loop(lambda k, _: k < SLOWER, turn, start, parallel_iterations=1)[1]

    return slow_on_one


def shares(name, seconds):
    """Two devices, of which the second has several times the work for an example."""
    loss, batch = of_model(name)
    work, box = cn.workload(loss, keras.optimizers.Adam(1e-3), *batch, memory=False), devices_here()
    loss, slower = slowed(loss), replace(ENGINE, slow=((1, float(SLOWER)),))
    found = {}
    for how in ("even", "measured"):
        plan = Plan(batch=BATCH, data=2, variables="shared", shares=how)
        guess = simulate(box, work, plan, slower).step
        trainer = cn.Trainer(loss, keras.optimizers.Adam(1e-3), plan=plan)
        if how == "measured":  # until shares are settled, and their graphs made
            measured(trainer, batch, guess, 4 * seconds)
        found[f"one of two is slow, {how} shares"] = measured(trainer, batch, guess, seconds), guess
    return found


def local(name, seconds):
    loss, batch = of_model(name)
    work, box = cn.workload(loss, keras.optimizers.SGD(1e-3), *batch, memory=False), devices_here()
    found = {}
    for n in (2, 4):
        plan = Plan(batch=BATCH, data=n, sync="local", every=8)
        guess = simulate(box, work, plan).step
        trainer = cn.Trainer(loss, keras.optimizers.SGD(1e-3), plan=plan)
        found[f"{n} replicas, averaged every 8"] = measured(trainer, batch, guess, seconds), guess
    return found


def deep(name):
    """A model with equal layers, and a batch for it."""
    keras.utils.set_random_seed(1)
    if name == "lstm":
        shape, layer = [16, 64], lambda: keras.layers.LSTM(64, return_sequences=True)
    else:
        shape, layer = [512], lambda: keras.layers.Dense(512, "elu")
    return keras.Sequential([keras.Input(shape), *(layer() for _ in range(8))]), tf.random.normal(
        [BATCH, *shape]
    )


def stages(name, seconds):
    model, x = deep(name)

    def loss_of(call):
        return lambda x: tf.reduce_mean(call(x) ** 2, axis=list(range(1, len(x.shape))))

    work = cn.workload(loss_of(model), keras.optimizers.SGD(1e-3), x, layers=model, memory=False)
    box, found = devices_here(), {}
    for n in (2, 3, 4):
        plan = choose(box, work, keep={"data": 1, "stage": n, "micro_batches": 4 * n})
        pipeline = cn.Pipeline(model, plan=plan)
        trainer = cn.Trainer(loss_of(pipeline), keras.optimizers.SGD(1e-3), devices=pipeline, plan=plan)
        found[f"{n} stages"] = measured(trainer, (x,), plan.predicted.step, seconds), plan.predicted.step
    return found


def advice(seed, seconds):
    """A random network: the layout that was chosen, and the measured steps of all that could have been."""
    rng = np.random.default_rng(int(seed))
    keras.utils.set_random_seed(int(seed))
    width, depth, batch = 2 ** rng.integers(3, 11), rng.integers(1, 6), 2 ** rng.integers(4, 11)
    hidden = [keras.layers.Dense(int(width), "relu") for _ in range(depth)]
    model = keras.Sequential([keras.Input([64]), *hidden, keras.layers.Dense(10)])

    def loss(x, y):
        return keras.losses.sparse_categorical_crossentropy(y, model(x, training=True), from_logits=True)

    data = tf.random.normal([int(batch), 64]), tf.zeros([int(batch)], tf.int32)
    work, box = cn.workload(loss, keras.optimizers.Adam(), *data, memory=False), devices_here()
    chosen = choose(box, work)
    found = {"chosen": chosen.layout}
    for n in sorted({1, 2, 4, 8, chosen.data}):
        plan = chosen if n == chosen.data else Plan(batch=int(batch), data=n, variables="shared")
        guess = simulate(box, work, plan).step
        trainer = cn.Trainer(loss, keras.optimizers.Adam(), plan=plan)
        found[plan.layout] = measured(trainer, data, guess, seconds), guess
    return found


KINDS = {"replicas": replicas, "shares": shares, "local": local, "stages": stages, "advice": advice}

if __name__ == "__main__":
    kind, model, length = sys.argv[1:]
    print(json.dumps(KINDS[kind](model, float(length))))
