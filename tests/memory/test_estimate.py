"""The estimate of memory against TensorFlow's own allocator, and the limits that it keeps."""

import sys

import keras
import pytest
import tensorflow as tf
from fresh import fresh, run

import colonnade as cn
from colonnade.run.engine import traces
from colonnade.run.memory import estimate as estimates
from colonnade.run.memory.dry_run import Bytes, JobMemory
from colonnade.run.sync import lockstep

MODELS = """
import keras, numpy as np
layers = keras.layers
def model(name):
    if name == "mlp":
        hidden = [layers.Dense(512, "tanh") for _ in range(4)]
        return keras.Sequential([keras.Input([256]), *hidden, layers.Dense(10)]), [1024, 256]
    if name == "conv":
        return keras.Sequential([
            keras.Input([28, 28, 1]), layers.Conv2D(32, 3, activation="relu"), layers.MaxPooling2D(),
            layers.Conv2D(64, 3, activation="relu"), layers.MaxPooling2D(), layers.Flatten(),
            layers.Dense(10),
        ]), [128, 28, 28, 1]
    return keras.Sequential([keras.Input([24, 64]), layers.LSTM(128), layers.Dense(10)]), [128, 24, 64]
def trainer(net, **options):
    def loss(x, y):
        return keras.losses.sparse_categorical_crossentropy(y, net(x, training=True), from_logits=True)
    return cn.Trainer(loss, keras.optimizers.Adam(1e-3), **options)
def batch(shape):
    return np.ones(shape, "float32"), np.zeros(shape[0], "int32")
"""

MEASURED = (
    MODELS
    + """
net, shape = model({name!r})
training = trainer(net, devices=1)
x, y = batch(shape)
for _ in range(3):
    training.train_on_batch(x, y)
print(tf.config.experimental.get_memory_info("CPU:0")["peak"])
"""
)


@pytest.mark.parametrize("name", ["mlp", "conv", "lstm"])
@pytest.mark.long
def test_within_a_fifth_of_what_the_allocator_measures(name):
    """Both are in processes of their own, with as many threads as TensorFlow takes by itself."""
    space: dict = {"cn": cn}
    exec(MODELS, space)
    net, shape = space["model"](name)
    (device,) = space["trainer"](net, devices=1).memory(*space["batch"](shape)).devices
    peak = int(fresh(MEASURED.format(name=name), virtual=1, TF_CPU_ALLOCATOR_USE_BFC="true"))
    assert device.parameters >= 4 * net.count_params()
    assert device.slots == pytest.approx(8 * net.count_params(), rel=0.01)
    assert device.total == pytest.approx(peak, rel=0.2)


@pytest.mark.long
def test_a_pipeline_has_each_stage_on_its_device():
    net = keras.Sequential([keras.Input([64]), keras.layers.Dense(256), keras.layers.Dense(16)])
    pipeline = cn.Pipeline(net, [[0, 1], [2, 3]], micro_batches=2)
    estimate = cn.memory(
        lambda x: tf.reduce_mean(pipeline(x), axis=1),
        tf.ones([64, 64]),
        optimizer=keras.optimizers.SGD(0.1, momentum=0.9),
        devices=pipeline,
    )
    first, second, third, fourth = estimate.devices
    assert [d.device[-5:] for d in estimate.devices] == ["CPU:0", "CPU:1", "CPU:2", "CPU:3"]
    assert (first.parameters, second.parameters) == (4 * 65 * 256, 4 * 257 * 16)
    assert (first.gradients, second.gradients) == (first.parameters, second.parameters)
    assert first.slots == pytest.approx(first.parameters, rel=0.01)
    assert (third.total, fourth.total) == (first.total, second.total)
    # Two micro-batches of 16 rows of 256 numbers leave the first stage before one comes back.
    assert first.activations > 16 * 64 * 4
    assert str(estimate).splitlines()[0].split()[-1] == "total"


@pytest.mark.parametrize(
    ("variables", "held"), [("shared", [1, 0]), ("mirrored", [1, 1]), ("partitioned", [0.5, 0.5])]
)
def test_variables_count_where_they_live(variables, held, monkeypatch):
    dense = [keras.layers.Dense(64, use_bias=False) for _ in range(2)]
    net = keras.Sequential([keras.Input([64]), *dense])
    size = 4 * net.count_params()
    seen = JobMemory((Bytes(0, 3 * size, size),), size, slots=2 * size, update=4 * size)
    monkeypatch.setattr(estimates, "dry_run", lambda jobs: [seen])
    estimate = cn.memory(net, tf.ones([8, 64]), devices=2, variables=variables)
    assert [d.parameters / size for d in estimate.devices] == pytest.approx(held)
    assert [d.slots / size for d in estimate.devices] == pytest.approx([2 * part for part in held])
    assert all(d.gradients == size for d in estimate.devices)
    # At the peak there is either what the gradient takes, or the gradients and what the update takes.
    peaks = [max(3, 5 * part) for part in held]
    assert [(d.gradients + d.activations) / size for d in estimate.devices] == pytest.approx(peaks)


def test_other_modes_have_variables_on_every_device(monkeypatch):
    net = keras.Sequential([keras.Input([64]), keras.layers.Dense(64, use_bias=False)])
    size = 4 * net.count_params()
    seen = JobMemory((Bytes(0, 3 * size, size),), size, slots=2 * size, update=4 * size)
    monkeypatch.setattr(estimates, "dry_run", lambda jobs: [seen])

    def held(sync):
        optimizer = keras.optimizers.Adam()
        trainer = cn.Trainer(lambda x: tf.reduce_mean(net(x), 1), optimizer, devices=2, sync=sync)
        return [(d.parameters / size, d.slots / size) for d in trainer.memory(tf.ones([8, 64])).devices]

    assert held(cn.LocalSGD(4)) == [(1, 2), (1, 2)]
    assert held(cn.Asynchronous()) == [(2, 2), (1, 0)]  # the first also has those that all share


def test_bad_functions():
    with pytest.raises(cn.InvalidArgument, match="must be a loss function or a Keras model"):
        cn.memory(3, tf.ones([2, 2]))
    table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer([1], [2]), 0)
    weight = tf.Variable(1.0)
    with pytest.raises(cn.InvalidArgument, match="neither a tensor nor a variable"):
        cn.memory(lambda x: weight * tf.cast(table.lookup(x), tf.float32), tf.ones([4], tf.int32))


# More than one device may hold, less than four hold together.
TOO_LARGE = """
import colonnade as cn
print(cn.setup(virtual=4, memory=16))
import keras, numpy as np
hidden = [keras.layers.Dense(512, "tanh") for _ in range(7)]
net = keras.Sequential([keras.Input([512]), *hidden, keras.layers.Dense(512)])
x = np.random.default_rng(0).normal(size=[32, 512]).astype("float32")
loss_of = lambda call: lambda x, y: keras.ops.mean((call(x) - y) ** 2, axis=1)
before = [w.copy() for w in net.get_weights()]
optimizer = keras.optimizers.Adam(1e-3)
try:
    cn.Trainer(loss_of(net), optimizer, devices=1).train_on_batch(x, x)
except cn.InvalidArgument as error:
    print("refused:", error)
print("untouched:", all((a == b).all() for a, b in zip(before, net.get_weights())), optimizer.built)
try:
    pipeline = cn.Pipeline(net, 2)
    cn.Trainer(loss_of(pipeline), keras.optimizers.Adam(1e-3), devices=pipeline).train_on_batch(x, x)
except cn.InvalidArgument as error:
    print("fits nowhere:", error)
pipeline = cn.Pipeline(net, 4)
trainer = cn.Trainer(loss_of(pipeline), keras.optimizers.Adam(1e-3), devices=pipeline)
losses = trainer.fit((x, x), batch_size=32, steps=20, progress=False).losses
print("trained:", losses[-1] < losses[0], pipeline.placement)
wide = keras.Sequential([keras.Input([2048]), keras.layers.Dense(2048), keras.layers.Dense(2048)])
try:
    cn.Pipeline(wide, 1, placement=[0, 0])(np.zeros([2, 2048], "float32"))
except cn.InvalidArgument as error:
    print("called by itself:", error)
"""


@pytest.mark.long
def test_refused_on_one_device_and_trained_on_four():
    done = run([sys.executable, "-c", TOO_LARGE])
    assert done.returncode == 0, done.stderr
    said = done.stdout
    assert "refused: this training cannot work with" in said
    assert "memory=16: is below the" in said
    assert (
        "MiB that CPU:0 needs by an estimate (parameters 8.0, slots 16.0, gradients 8.0, activations" in said
    )
    assert "untouched: True False" in said
    assert "fits nowhere: Pipeline() cannot work with" in said
    assert "no cut between layers fits the limits (CPU:0 16.0 MiB, CPU:1 16.0 MiB)" in said
    assert "take 3 devices" in said or "take 4 devices" in said
    assert "trained: True (0" in said
    assert "memory=16: is below the 32.0 MiB of weights that CPU:0 gets" in said


def test_parts_of_width_layers_count_where_they_live(monkeypatch):
    """In a pipeline and beside replicas: parameters, slots and gradients on the devices of the parts."""
    wide = cn.width.Dense(64, gather=False, devices=[2, 3], use_bias=False)
    net = keras.Sequential([keras.Input([32]), keras.layers.Dense(32, use_bias=False), wide])
    size, part = 4 * 32 * 32, 4 * 32 * 32  # of the first layer, and of each part of the second
    made_on = {"": 4, "/device:CPU:2": 1, "/device:CPU:3": 3}
    seen = JobMemory((Bytes(0, 11 * size, 3 * size),), 3 * size, 6 * size, made_on=made_on)
    monkeypatch.setattr(estimates, "dry_run", lambda jobs: [seen])
    batch = tf.ones([8, 32])

    def loss(call):
        return lambda x: tf.reduce_mean(cn.width.softmax_cross_entropy(tf.zeros([8], tf.int32), call(x)))

    one = cn.memory(loss(net), batch, devices=1)
    assert [d.device[-5:] for d in one.devices] == ["CPU:0", "CPU:2", "CPU:3"]
    assert [d.parameters for d in one.devices] == [size, part, part]
    assert [d.slots for d in one.devices] == [2 * size, 2 * part, 2 * part]
    assert [d.gradients for d in one.devices] == [size, part, part]
    assert [d.activations for d in one.devices] == [4 * size, size, 3 * size]

    mean = cn.width.Dense(1, split="rows", devices=[2, 3], use_bias=False)
    deep = keras.Sequential([net, mean])
    dealt = cn.memory(lambda x: tf.reduce_mean(deep(x), axis=1), batch, devices=2, variables="partitioned")
    held = {d.device[-5:]: d.parameters for d in dealt.devices}
    assert held == {"CPU:0": size, "CPU:1": 0, "CPU:2": part + 128, "CPU:3": part + 128}


# By width: 8 MiB of weights, and three times that for Adam and the gradient, in four times 16 MiB.
TOO_WIDE = """
import colonnade as cn
cn.setup(virtual=4, memory=16)
import keras, numpy as np, tensorflow as tf
x = np.random.default_rng(0).normal(size=[8, 512]).astype("float32")
def trainer(devices):
    net = keras.Sequential([
        keras.Input([512]), cn.width.Dense(2048, "tanh", gather=False, devices=devices),
        cn.width.Dense(512, split="rows", devices=devices),
    ])
    loss = lambda x, y: tf.reduce_mean((net(x) - y) ** 2, axis=1)
    return cn.Trainer(loss, keras.optimizers.Adam(1e-3), devices=1)
try:
    trainer(1).train_on_batch(x, x)
except cn.InvalidArgument as error:
    print("refused:", error)
try:
    trainer([0, 3]).train_on_batch(x, x)
except cn.InvalidArgument as error:
    print("refused on two:", [p.rule.partition(" needs")[0][-5:] for p in error.problems])
training = trainer(4)
losses = [training.train_on_batch(x[:n], x[:n]).loss for n in (8, 8, 5)]
print("trained:", losses[1] < losses[0])
"""


@pytest.mark.long
def test_a_layer_split_by_width_is_refused_on_two_devices_and_trained_on_four():
    done = run([sys.executable, "-c", TOO_WIDE])
    assert done.returncode == 0, done.stderr
    assert "MiB that CPU:0 needs by an estimate (parameters 8.0, slots 16.0, gradients 8.0" in done.stdout
    assert "refused on two: ['CPU:0', 'CPU:3']" in done.stdout
    assert "trained: True" in done.stdout


def test_a_batch_no_larger_than_one_that_fits_is_not_rehearsed_again(monkeypatch):
    seen = []
    monkeypatch.setattr(lockstep.hardware, "has_limits", lambda: True)
    monkeypatch.setattr(lockstep, "limited", lambda devices: True)
    monkeypatch.setattr(traces, "misfits", lambda memory: seen.append(memory) or ())
    monkeypatch.setattr(estimates, "dry_run", lambda jobs: [JobMemory((Bytes(0, 0, 0),))])
    dense = keras.layers.Dense(1)
    trainer = cn.Trainer(lambda x: dense(x)[:, 0] ** 2, keras.optimizers.SGD(0.1), devices=1)
    for rows in (4, 3, 4, 5, 2):
        trainer.train_on_batch(tf.ones([rows, 2]))
    assert len(seen) == 2


def test_the_users_own_variables_count_on_a_device_of_the_pipeline(monkeypatch):
    """As on a machine with cards, where TensorFlow makes variables on the first of them."""
    with tf.device("/device:CPU:1"):
        layers = [keras.layers.Dense(8, use_bias=False) for _ in range(2)]
        net = keras.Sequential([keras.Input([8]), *layers])
    size = 4 * net.count_params()
    monkeypatch.setattr(
        estimates, "dry_run", lambda jobs: [JobMemory(tuple(Bytes(0, 0, 0) for _ in jobs[0].functions))]
    )
    pipeline = cn.Pipeline(net, [1, 2], micro_batches=2)
    estimate = cn.memory(lambda x: tf.reduce_mean(pipeline(x), axis=1), tf.ones([8, 8]), devices=pipeline)
    assert [d.parameters for d in estimate.devices] == [size + size / 2, size / 2]


def test_in_a_notebook(monkeypatch):
    monkeypatch.setattr(estimates, "estimated_limit", lambda device: 2**30 if device.endswith("0") else None)
    rows = [estimates.Footprint(f"/device:CPU:{i}", 2**20, 2**21, 0, 512) for i in range(2)]
    html = estimates.Memory(tuple(rows))._repr_html_()
    assert html.count("1.0 GiB") == 1
    assert html.count("2.0 MiB") == 2
    assert "CPU:1" in html
