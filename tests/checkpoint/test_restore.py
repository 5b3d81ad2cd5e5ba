"""Bringing a training to a saved step: on other devices, in other homes, or refused with all that differs."""

import json
import re
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf
from families import long
from saves import X, Y, assert_same, batches, everything, linear, saved

import colonnade as cn


@pytest.mark.parametrize(
    ("devices", "variables"), [(3, "mirrored"), *long((1, "partitioned"), (8, "shared"))]
)
def test_on_another_number_of_devices_the_stored_values_are_the_same_and_training_goes_on(
    tmp_path, devices, variables
):
    _, four = linear(4)
    four.fit(batches(), steps=6, epochs=2, checkpoint=saved(tmp_path), progress=False)
    _, unbroken = linear(1)
    unbroken.fit(batches(), steps=12, epochs=2, progress=False)
    values = tf.train.load_checkpoint(str(tmp_path / "step-000000000006" / "values"))
    w, other = linear(devices, variables)
    other.fit(batches(), steps=6, epochs=2, checkpoint=saved(tmp_path), progress=False)
    assert (other.step, other.examples) == (6, 60)
    for name, value in everything(other).items():
        assert np.array_equal(value, values.get_tensor(name)), name
    _, on = linear(devices, variables)
    on.fit(batches(), steps=12, epochs=2, checkpoint=saved(tmp_path), progress=False)
    # Sums of float32 in another order, over 12 steps.
    np.testing.assert_allclose(on.parameters[0], unbroken.parameters[0], rtol=1e-5, atol=1e-6)
    assert w.shape == (4, 1)


def split(devices, steps, folder):
    """Two layers of the same shape, so that they could be mistaken for each other."""
    keras.backend.clear_session()
    keras.utils.set_random_seed(1)
    wide = [cn.width.Dense(11, "tanh", devices=devices, dtype="float64") for _ in range(2)]
    model = keras.Sequential([keras.Input([11]), *wide, keras.layers.Dense(1, dtype="float64")])
    trainer = cn.Trainer(
        lambda x, y: tf.squeeze((model(x) - y) ** 2, axis=1), keras.optimizers.Adam(0.01), devices=1
    )
    data = (np.tile(X, 3)[:, :11].astype("float64"), Y.astype("float64"))
    trainer.fit(data, batch_size=12, steps=steps, checkpoint=saved(folder), progress=False)
    values = tf.train.load_checkpoint(str(folder / f"step-{steps:012d}" / "values"))
    return model, {name: values.get_tensor(name) for name in values.get_variable_to_shape_map()}


@pytest.mark.long
@pytest.mark.parametrize("devices", [3, *long(1)])
def test_layers_split_by_width_go_on_on_another_number_of_devices(tmp_path, devices):
    """The parts of a variable, and those of its slots, are slices of one tensor in the checkpoint."""
    four, unbroken = tmp_path / "four", tmp_path / "unbroken"
    model, values = split(4, 4, four)
    assert [value.shape for name, value in values.items() if "part" in name] == []
    assert sum(value.shape == (11, 11) for value in values.values()) == 6  # kernels, and two slots of each
    kernels = [layer.logical[0].numpy() for layer in model.layers[:2]]
    saved_kernels = [value for name, value in values.items() if re.match("parameters/.*kernel", name)]
    assert sum(np.array_equal(one, other) for one in kernels for other in saved_kernels) == 2
    _, wanted = split(1, 8, unbroken)
    copy = tmp_path / str(devices)
    shutil.copytree(four, copy)
    model, same = split(devices, 4, copy)
    assert len(model.layers[0].devices) == devices
    for layer, kernel in zip(model.layers, kernels, strict=False):
        assert np.array_equal(layer.logical[0].numpy(), kernel)
    assert_same(same, values)
    _, on = split(devices, 8, copy)
    assert on.keys() == wanted.keys()
    # Sums in another order, over 8 steps of Adam, which divides by gradients that may be small: in float64,
    # where that is far from any mistake.
    for name, value in on.items():
        np.testing.assert_allclose(value, wanted[name], rtol=1e-9, atol=1e-12, err_msg=name)


def test_a_variable_with_an_open_shape_goes_on(tmp_path):
    def fit(steps, length):
        w, _ = linear()
        extra = tf.Variable(tf.ones([length]), shape=tf.TensorShape([None]), trainable=False, name="open")
        trainer = cn.Trainer(
            lambda x, y: tf.squeeze(x @ w - y, 1) + 0 * tf.reduce_sum(extra),
            keras.optimizers.SGD(0.01, name="sgd"),
            devices=1,
        )
        history = trainer.fit(batches(), steps=steps, epochs=1, checkpoint=saved(tmp_path), progress=False)
        return history.resumed, extra.shape, extra.numpy().tolist()

    fit(3, length=2)
    assert fit(6, length=5) == (3, tf.TensorShape([None]), [1.0, 1.0])


def test_random_streams_on_another_number_of_devices_stay_apart(tmp_path):
    def make(devices):
        w, generator = tf.Variable(tf.zeros(1), name="w"), tf.random.Generator.from_seed(7)
        return cn.Trainer(
            lambda x: w * x[:, 0] + generator.normal(tf.shape(x)[:1]),
            keras.optimizers.SGD(0.1, name="sgd"),
            devices=devices,
        )

    data = tf.data.Dataset.from_tensor_slices(X).batch(12)
    make(2).fit(data, steps=3, checkpoint=saved(tmp_path), progress=False)
    trainer = make(3)
    trainer.fit(data, steps=3, checkpoint=saved(tmp_path), progress=False)
    own = [value.tolist() for name, value in everything(trainer).items() if name.startswith("replicas/")]
    manifest = json.loads((tmp_path / "step-000000000003" / "manifest.json").read_text())
    assert own[:2] == manifest["generators"]["StateVar"]
    assert len({tuple(state) for state in own}) == 3


def test_everything_that_does_not_fit_is_in_one_error(tmp_path):
    _, trainer = linear()
    trainer.fit(batches(), steps=1, checkpoint=saved(tmp_path), progress=False)
    for options, says in (
        ({"shape": (3, 1)}, [r"parameters/w='float32 \[3, 1\]': is float32 \[4, 1\] in the checkpoint"]),
        ({"dtype": "float64"}, [r"parameters/w='float64 \[4, 1\]': is float32 \[4, 1\] in the checkpoint"]),
        (
            {"name": "v"},
            [
                r"parameters/v='float32 \[4, 1\]': is not in the checkpoint",
                r"parameters/w='float32 \[4, 1\]': is in the checkpoint, and the training has no such",
                r"optimizer/sgd/v_0_momentum='float32 \[4, 1\]': is not in the checkpoint",
            ],
        ),
    ):
        w, other = linear(**options)
        with pytest.raises(cn.InvalidArgument) as error:
            other.fit(batches(), steps=2, checkpoint=saved(tmp_path), progress=False)
        for text in says:
            assert re.search(text, str(error.value)), str(error.value)
        assert not w.numpy().any()
