"""Trainings that are run on several machines and on one with as many devices, to be held against each other.

As a program, this is one of the machines: `python machine_cases.py NAMES`, with TF_CONFIG.
"""

import json
import os
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from machine_fits import is_last, keras_parted, keras_saved, keras_saved_whole, refusal

import colonnade as cn


def rows(count, width=5, seed=3):
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(count, width))
    return x, np.sin(x.sum(axis=1, keepdims=True))


def dense_model(width=5, dtype="float64"):
    keras.utils.set_random_seed(11)
    return keras.Sequential(
        [
            keras.Input((width,), dtype=dtype),
            keras.layers.Dense(7, "tanh", dtype=dtype),
            keras.layers.Dense(1, dtype=dtype),
        ]
    )


def squared(model):
    def loss(x, y):
        error = model(x, training=True) - y
        return tf.reduce_mean(error**2, axis=1), {"error": tf.reduce_mean(tf.abs(error), axis=1)}

    return loss


def normalised(model):
    """The same for a model with layers that do other things in training."""

    def loss(x, y, training):
        error = model(x, training=training) - y
        return tf.reduce_mean(error**2, axis=1), {"error": tf.reduce_mean(tf.abs(error), axis=1)}

    return loss


def told(trainer, history, **more):
    """What is compared of a training."""
    return {
        "losses": history.losses,
        "records": [[r.step, r.loss, r.metrics, r.examples, r.skipped] for r in history.records],
        "parameters": [p.numpy().tolist() for p in trainer.parameters],
        **more,
    }


def plain(devices, **options):
    """Batches of 99, and a last one of 10."""
    model = dense_model()
    trainer = cn.Trainer(squared(model), keras.optimizers.Adam(0.01), devices=devices, **options)
    data = tf.data.Dataset.from_tensor_slices(rows(208)).batch(99)
    history = trainer.fit(data, epochs=3, log_every=2, progress=False, prove=options == {})
    scored = trainer.evaluate(data)
    return told(trainer, history, scored=[scored.loss, scored.metrics, scored.examples])


def measured(devices):
    """The last machine takes longer for each row, so it gets fewer of them."""
    model = dense_model()

    def slower(y):
        if is_last() and cn.machines().size > 1:
            time.sleep(0.001 * len(y))
        return y

    def loss(x, y):
        y = tf.ensure_shape(tf.numpy_function(slower, [y], y.dtype), y.shape)
        return tf.reduce_mean((model(x, training=True) - y) ** 2, axis=1)

    trainer = cn.Trainer(
        loss, keras.optimizers.Adam(0.01), devices=devices, sync=cn.Synchronous(shares="measured")
    )
    data = tf.data.Dataset.from_tensor_slices(rows(31)).batch(31).repeat()
    history = trainer.fit(data, steps=14, log_every=2, progress=False, prove=False)
    if cn.machines().size > 1:
        everywhere = sum(trainer.shares().values())
        assert everywhere < 0.3 if is_last() else everywhere > 0.7, trainer.shares()
    return told(trainer, history)


def mirrored(devices):
    return plain(devices, variables="mirrored")


def partitioned(devices):
    return plain(devices, variables="partitioned")


def few_rows(devices):
    """Fewer rows than devices: some machines have nothing to do."""
    model = dense_model()
    trainer = cn.Trainer(squared(model), keras.optimizers.SGD(0.1), devices=devices)
    history = trainer.fit(rows(4), batch_size=3, epochs=2, log_every=1, progress=False, prove=False)
    return told(trainer, history)


def weighted(devices):
    model = dense_model()

    def loss(x, y, weight):
        error = (model(x, training=True) - y) ** 2
        return cn.Weighted(error[:, 0], weight), {"error": tf.abs(error[:, 0])}

    x, y = rows(90)
    weight = np.where(np.arange(90) % 7 < 3, 0.0, np.arange(90) / 30.0)
    trainer = cn.Trainer(loss, keras.optimizers.SGD(0.05, momentum=0.9), devices=devices)
    history = trainer.fit((x, y, weight), batch_size=31, epochs=2, progress=False, prove=False)
    return told(trainer, history)


def penalized(devices):
    """With a penalty, accumulation of gradients, averaged weights and clipping, in one optimizer."""
    model = dense_model()
    optimizer = keras.optimizers.Adam(
        0.01, gradient_accumulation_steps=2, use_ema=True, ema_momentum=0.9, global_clipnorm=0.1
    )

    def penalty():
        return 0.01 * tf.add_n([tf.reduce_sum(v.value**2) for v in model.trainable_variables])

    trainer = cn.Trainer(squared(model), optimizer, devices=devices, penalty=penalty)
    history = trainer.fit(rows(60), batch_size=20, epochs=3, progress=False, prove=False)
    return told(trainer, history, scored=trainer.evaluate(rows(33), batch_size=33).loss)


def sparse(devices):
    """Embeddings, looked up by ids of the batch and at fixed positions."""
    keras.utils.set_random_seed(5)
    table = tf.Variable(np.random.default_rng(1).normal(size=(50, 4)), name="table")
    places = tf.Variable(np.random.default_rng(2).normal(size=(6, 4)), name="places")

    def loss(ids, y):
        seen = tf.gather(table, ids) + tf.gather(places, tf.range(6))[None]
        return tf.reduce_mean((tf.reduce_sum(seen, axis=2) - y) ** 2, axis=1)

    draw = np.random.default_rng(4)
    ids, y = draw.integers(0, 50, size=(45, 6)), draw.normal(size=(45, 6))
    trainer = cn.Trainer(loss, keras.optimizers.Adagrad(0.1), devices=devices)
    history = trainer.fit((ids, y), batch_size=22, epochs=2, progress=False, prove=False)
    return told(trainer, history)


def nan_stop(devices):
    """A NaN in the last row of the second batch."""
    model = dense_model()
    x, y = rows(60)
    x[59, 0] = np.nan
    trainer = cn.Trainer(squared(model), keras.optimizers.SGD(0.1), devices=devices)
    try:
        trainer.fit((x, y), batch_size=30, progress=False, prove=False)
    except cn.NotFinite as error:
        parameters = [p.numpy().tolist() for p in trainer.parameters]
        variable = error.variable.rpartition("/")[2]  # what is before it counts the models of the process
        return {"step": error.step, "device": error.device, "variable": variable, "parameters": parameters}
    raise AssertionError("no NaN was seen")


def nan_skip(devices):
    model = dense_model()
    x, y = rows(90)
    x[35, 0] = np.nan
    trainer = cn.Trainer(squared(model), keras.optimizers.SGD(0.1), devices=devices, on_nan="skip")
    history = trainer.fit((x, y), batch_size=30, epochs=2, log_every=1, progress=False, prove=False)
    kept = told(trainer, history, skipped=trainer.skipped)
    return {**kept, "losses": [repr(loss) for loss in kept["losses"]], "records": None}


def norm_model(synchronized):
    keras.utils.set_random_seed(11)
    return keras.Sequential(
        [
            keras.Input((5,), dtype="float64"),
            keras.layers.Dense(7, dtype="float64"),
            keras.layers.BatchNormalization(synchronized=synchronized, dtype="float64"),
            keras.layers.Activation("tanh", dtype="float64"),
            keras.layers.Dense(1, dtype="float64"),
        ]
    )


def norm(devices, *, synchronized):
    model = norm_model(synchronized)
    trainer = cn.Trainer(squared(model), keras.optimizers.SGD(0.05), devices=devices)
    data = tf.data.Dataset.from_tensor_slices(rows(43)).batch(40)
    history = trainer.fit(data, epochs=2, progress=False, prove=False)
    averages = [v.numpy().tolist() for v in model.non_trainable_variables if "moving" in v.path]
    return told(trainer, history, averages=averages)


def local_norm(devices):
    return norm(devices, synchronized=False)


def synchronised_norm(devices):
    """The last batch has 3 rows: a device, and maybe a machine, has none."""
    return norm(devices, synchronized=True)


def scaled(devices):
    """With a loss scale that changes, in float32."""
    model = dense_model(dtype="float32")
    optimizer = keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD(0.05), initial_scale=2.0**12, dynamic_growth_steps=2
    )
    x, y = (part.astype("float32") for part in rows(64))
    trainer = cn.Trainer(squared(model), optimizer, devices=devices)
    history = trainer.fit((x, y), batch_size=16, progress=False, prove=False)
    return told(trainer, history, scale=float(optimizer.dynamic_scale))


def shuffled(devices):
    """Shuffled without a seed of its own, after the program has set one."""
    keras.utils.set_random_seed(99)
    model = dense_model()
    data = tf.data.Dataset.from_tensor_slices(rows(64)).shuffle(64).batch(16)
    trainer = cn.Trainer(squared(model), keras.optimizers.SGD(0.05), devices=devices)
    history = trainer.fit(data, epochs=2, progress=False, prove=False)
    return told(trainer, history)


def keras_fit(devices, loss="mse", *, proved=True):
    """`cn.fit` with metrics of the whole batch, a regulariser, shuffling and validation."""
    keras.utils.set_random_seed(21)
    model = keras.Sequential(
        [
            keras.Input((5,)),
            keras.layers.Dense(6, "tanh", kernel_regularizer=keras.regularizers.L2(0.01)),
            keras.layers.Dense(1),
        ]
    )
    model.compile(keras.optimizers.Adam(0.01), loss, metrics=["mae", keras.metrics.R2Score()])
    x, y = (part.astype("float32") for part in rows(70))
    history = cn.fit(
        model, x, y, devices=devices, batch_size=30, epochs=2, validation_data=(x, y), verbose=0, prove=proved
    )
    scored = cn.evaluate(model, x, y, devices=devices, batch_size=32, verbose=0)
    return {
        "history": history.history,
        "weights": [w.tolist() for w in model.get_weights()],
        "scored": scored,
        "predicted": cn.predict(model, x[:7], devices=devices, verbose=0).tolist(),
    }


def keras_gathered(devices):
    """A loss that is a sum over the batch: predictions are put together first."""
    return keras_fit(devices, keras.losses.MeanSquaredError(reduction="sum"), proved=False)


def sharded(devices):
    """Each machine brings its own part: rows in turn, so that batches are those of one machine, sorted."""
    machines = cn.machines()
    x, y = rows(92)
    if machines.size == 1:  # what two machines with batches of 7 make together, the last of 5 and 3
        parts = [np.arange(46), np.arange(46, 90)]
        batches = zip(*([part[i : i + 7] for i in range(0, len(part), 7)] for part in parts), strict=True)
        data = [(x[np.concatenate(both)], y[np.concatenate(both)]) for both in batches]
    else:
        own = np.arange(46) if machines.is_first else np.arange(46, 90)
        data = tf.data.Dataset.from_tensor_slices((x[own], y[own])).batch(7)
    model = norm_model(True)
    sync = cn.Synchronous(data="sharded")
    trainer = cn.Trainer(normalised(model), keras.optimizers.Adam(0.01), devices=devices, sync=sync)
    history = trainer.fit(data, log_every=1, progress=False, prove=False)
    averages = [v.numpy().tolist() for v in model.non_trainable_variables if "moving" in v.path]
    scored = trainer.evaluate(data)
    return told(trainer, history, averages=averages, scored=[scored.loss, scored.metrics, scored.examples])


def uneven_shards(devices):
    """The data of the last machine end sooner: so does the training, on all."""
    x, y = rows(40)
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(5).take(3 if is_last() else 6)
    trainer = cn.Trainer(
        squared(dense_model()),
        keras.optimizers.SGD(0.1),
        devices=devices,
        sync=cn.Synchronous(data="sharded"),
    )
    history = trainer.fit(data, progress=False, prove=False)
    checkpoint = cn.Checkpoint(tempfile.gettempdir(), every=5)
    exact = refusal(lambda: trainer.fit(data, progress=False, checkpoint=checkpoint))
    whole = cn.Trainer(squared(dense_model()), keras.optimizers.SGD(0.1), devices=devices)
    shares = [list(one.shares().values()) for one in (trainer, whole)]
    return [len(history.losses), trainer.step, trainer.examples, shares, exact]


def local(devices, sync, every, **options):
    """Machines with one device each, or as many devices, that train by themselves between joins."""
    alone = cn.machines().size == 1
    model = dense_model()
    how = {"across": "machines", **options} if not alone else {}
    trainer = cn.Trainer(
        squared(model),
        keras.optimizers.SGD(0.05, momentum=0.5),
        devices=2 if alone else 1,
        sync=sync(every, **how),
    )
    x, y = rows(60)
    options = {"batch_size": 11, "log_every": 3, "progress": False, "prove": False}
    trainer.fit((x, y), steps=every, **options)
    history = trainer.fit((x, y), steps=3 * every, **options)
    return told(trainer, history)


def local_sgd(devices):
    return local(devices, cn.LocalSGD, 3)


def diloco(devices):
    return local(devices, cn.DiLoCo, 4)


def diloco_bfloat16(devices):
    return local(devices, cn.DiLoCo, 4, compress="bfloat16")


def diloco_int8(devices):
    return local(devices, cn.DiLoCo, 4, compress="int8")


def other_model(devices):
    """The last machine has a wider layer."""
    keras.utils.set_random_seed(1)
    wide = keras.Sequential([keras.Input((5,)), keras.layers.Dense(2 + is_last()), keras.layers.Dense(1)])
    trainer = cn.Trainer(squared(wide), keras.optimizers.SGD(0.1), devices=devices)
    return refusal(lambda: trainer.fit(rows32(20), batch_size=10, progress=False))


def other_values(devices):
    """The last machine begins with other weights."""
    model = dense_model()
    model.layers[0].bias.assign(np.full(7, float(is_last())))
    trainer = cn.Trainer(squared(model), keras.optimizers.SGD(0.1), devices=devices)
    return refusal(lambda: trainer.fit(rows(20), batch_size=10, progress=False))


def other_order(devices):
    """The last machine reads the data in another order."""
    model = dense_model()
    x, y = rows(60)
    if is_last():
        x, y = x[::-1].copy(), y[::-1].copy()
    trainer = cn.Trainer(squared(model), keras.optimizers.SGD(0.1), devices=devices)
    return refusal(lambda: trainer.fit((x, y), batch_size=30, progress=False, prove=False))


def other_constant(devices):
    """The last machine has another number in its loss."""
    model, rate = dense_model(), 0.5 + is_last()
    trainer = cn.Trainer(lambda x, y: rate * model(x)[:, 0] ** 2, keras.optimizers.SGD(0.1), devices=devices)
    return refusal(lambda: trainer.fit(rows(20), batch_size=10, progress=False, prove=False))


def other_frozen_layer(devices):
    """The last machine has other values in a layer that is not trained, as after another download."""
    model = dense_model()
    model.layers[0].trainable = False
    model.layers[0].bias.assign(np.full(7, 0.1 * is_last()))
    trainer = cn.Trainer(squared(model), keras.optimizers.SGD(0.1), devices=devices)
    return refusal(lambda: trainer.fit(rows(20), batch_size=10, progress=False, prove=False))


def other_way_round(devices):
    """The last machine takes one from the other the other way: the same ops, and another loss."""
    model, last = dense_model(), is_last()

    def loss(x, y):
        left, right = model(x, training=True)[:, 0], tf.reduce_sum(x, axis=1)
        return tf.nn.relu(right - left if last else left - right)

    trainer = cn.Trainer(loss, keras.optimizers.SGD(0.1), devices=devices)
    return refusal(lambda: trainer.fit(rows(20), batch_size=10, progress=False, prove=False))


def other_size(devices):
    """The last machine comes to a smaller batch, after a call in which all were alike."""
    model = dense_model()
    trainer = cn.Trainer(squared(model), keras.optimizers.SGD(0.1), devices=devices)
    data = rows(100 if is_last() else 112)
    words = refusal(lambda: trainer.fit(data, batch_size=16, log_every=1, progress=False, prove=False))
    return [words, trainer.step]


def other_batch_of_keras(devices):
    """The same in `cn.fit`, and another number of epochs; `train_on_batch` with other rows."""
    model = dense_model()
    model.compile("sgd", "mse")
    x, y = rows(36 if is_last() else 48)
    fit = partial(cn.fit, model, x, y, devices=devices, batch_size=16, verbose=0, prove=False)
    return [
        refusal(lambda: fit(epochs=1 + is_last())),
        refusal(lambda: fit(shuffle=False)),
        refusal(lambda: cn.train_on_batch(model, x, y, devices=devices, prove=False)),
    ]


def other_steps(devices):
    """The last machine is asked for more steps."""
    trainer = cn.Trainer(squared(dense_model()), keras.optimizers.SGD(0.1), devices=devices)
    return refusal(lambda: trainer.fit(rows(60), batch_size=30, steps=4 + is_last(), progress=False))


def spoilt(devices):
    """The last machine comes to other values, which a save must not keep."""
    folder = Path(tempfile.gettempdir()) / f"spoilt-{os.environ['SPOILT']}"
    trainer = cn.Trainer(squared(dense_model()), keras.optimizers.SGD(0.1), devices=devices)

    def spoil(record):
        if is_last() and record.step == 2:
            trainer.parameters[0].assign_add(1e-12 * tf.ones_like(trainer.parameters[0]))

    options = {"log_every": 1, "callbacks": [spoil], "progress": False, "prove": False}
    checkpoint = cn.Checkpoint(folder, every=2)
    words = refusal(lambda: trainer.fit(rows(90), batch_size=30, checkpoint=checkpoint, **options))
    unsaved = refusal(lambda: trainer.fit(rows(60), batch_size=30, progress=False, prove=False))
    return [words, sorted(p.name for p in folder.iterdir() if p.name.startswith("step")), unsaved]


def diloco_saved(devices):
    """Parameters of a training that was cut and went on, and of one that was not; both saved as often."""
    found = []
    for name, ends in (("whole", [12]), ("cut", [8, 12])):
        checkpoint = cn.Checkpoint(Path(tempfile.gettempdir()) / f"{name}-{os.environ['SPOILT']}", every=4)
        for steps in ends:
            w = tf.Variable(np.random.default_rng(3).normal(size=(5, 1)), name="w")
            optimizer, sync = keras.optimizers.Adam(0.01, name="adam"), cn.DiLoCo(4, "machines", "int8")
            loss = partial(squared_of, w)
            trainer = cn.Trainer(loss, optimizer, devices=devices, sync=sync)
            options = {"batch_size": 20, "steps": steps, "progress": False, "prove": False}
            history = trainer.fit(rows(60), checkpoint=checkpoint, **options)
        found.append([history.resumed, [p.numpy().tolist() for p in trainer.parameters]])
    return found


def squared_of(w, x, y):
    return tf.reduce_mean((x @ w - y) ** 2, axis=1)


def refused_modes(devices):
    """All that is for the devices of one machine."""
    model = dense_model()
    model.compile("sgd", "mse")
    pipeline = cn.Pipeline(model, [[devices[0]]])
    train = lambda **how: cn.Trainer(squared(model), keras.optimizers.SGD(0.1), **how)  # noqa: E731

    class Own(keras.Model):
        def train_step(self, data):
            raise NotImplementedError

    own = Own()
    own.compile("sgd", "mse")
    return {
        "asynchronous": refusal(lambda: train(sync=cn.Asynchronous())),
        "local": refusal(lambda: train(sync=cn.LocalSGD(4))),
        "elastic": refusal(lambda: train(sync=cn.Elastic(4, 0.1))),
        "measured": refusal(lambda: train(sync=cn.Synchronous(shares="measured", data="sharded"))),
        "auto": refusal(lambda: train(compile="auto")),
        "whole batches": refusal(lambda: cn.fit(model, np.ones((4, 5)), np.ones((4, 1)), per_device=True)),
        "pipeline": refusal(lambda: train(devices=pipeline)),
        "own step": refusal(lambda: cn.fit(own, np.ones((4, 5)), np.ones((4, 1)))),
    }


def rows32(count):
    return tuple(part.astype("float32") for part in rows(count))


WRONG = {
    case.__name__: case
    for case in (
        other_model,
        other_values,
        other_order,
        other_constant,
        other_frozen_layer,
        other_way_round,
        other_size,
        other_batch_of_keras,
        other_steps,
        spoilt,
        refused_modes,
        uneven_shards,
        diloco_saved,
        keras_saved,
        keras_saved_whole,
        keras_parted,
    )
}
CASES = {
    case.__name__: case
    for case in (
        plain,
        mirrored,
        measured,
        partitioned,
        few_rows,
        weighted,
        penalized,
        sparse,
        nan_stop,
        nan_skip,
        local_norm,
        synchronised_norm,
        scaled,
        shuffled,
        keras_fit,
        keras_gathered,
        sharded,
        local_sgd,
        diloco,
        diloco_bfloat16,
        diloco_int8,
    )
}


if __name__ == "__main__":
    own = cn.setup(virtual=int(sys.argv[2]))
    for name in sys.argv[1].split(","):
        begin = time.process_time()
        told_of_case = (CASES | WRONG)[name](own)
        print("CASE", json.dumps([name, told_of_case]), flush=True)
        print("TOOK", name, round(time.process_time() - begin, 1), flush=True)
