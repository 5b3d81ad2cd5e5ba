"""The estimate of memory against TensorFlow's own allocator, and the limits that it keeps."""

import sys

import keras
import pytest
import tensorflow as tf
from fresh import fresh, run

import colonnade as cn
from colonnade.run import footprint
from colonnade.run.rehearsal import Bytes, Seen

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
    seen = Seen((Bytes(0, 3 * size, size),), slots=2 * size, update=4 * size)
    monkeypatch.setattr(footprint, "rehearse", lambda plays: [seen])
    estimate = cn.memory(net, tf.ones([8, 64]), devices=2, variables=variables)
    assert [d.parameters / size for d in estimate.devices] == pytest.approx(held)
    assert [d.slots / size for d in estimate.devices] == pytest.approx([2 * part for part in held])
    assert all(d.gradients == size for d in estimate.devices)
    # At the peak there is either what the gradient takes, or the gradients and what the update takes.
    peaks = [max(3, 5 * part) for part in held]
    assert [(d.gradients + d.activations) / size for d in estimate.devices] == pytest.approx(peaks)


def test_bad_functions():
    with pytest.raises(cn.InvalidArgument, match="must be a loss function or a Keras model"):
        cn.memory(3, tf.ones([2, 2]))
    table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer([1], [2]), 0)
    weight = tf.Variable(1.0)
    with pytest.raises(cn.InvalidArgument, match="neither a tensor nor a variable"):
        cn.memory(lambda x: weight * tf.cast(table.lookup(x), tf.float32), tf.ones([4], tf.int32))


# D2: more than one device may hold, less than four hold together.
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
"""


def test_d2_refused_on_one_device_and_trained_on_four():
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
