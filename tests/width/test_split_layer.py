"""Parts of weights: where they are, and that they are saved and loaded as one."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from wide import CLOSE, WIDTH, autoencoder, plain_autoencoder, sparse

import colonnade as cn


def devices_of(weights):
    return [tf.DeviceSpec.from_string(w.value.device).device_index for w in weights]


def test_parts_are_consecutive_and_where_they_belong():
    """Of 250 or 251 columns."""
    model, plain = autoencoder(4), plain_autoencoder()
    output = model.layers[-1]
    assert [k.shape[1] for k in output.kernel.parts] == [251, 251, 251, 250]
    assert [b.shape[0] for b in output.bias.parts] == [251, 251, 251, 250]
    np.testing.assert_array_equal(output.kernel.numpy(), plain.layers[-1].kernel)
    assert devices_of(output.kernel.parts) == devices_of(output.bias.parts) == [0, 1, 2, 3]
    assert devices_of(model.layers[1].bias.parts) == [0]
    names = [w.path for w in model.weights]
    assert len(set(names)) == len(names)
    assert len(model.weights) == 4 + 4 + 4 + 1 + 4 + 4
    optimizer = keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)
    slots = [v for v in optimizer.variables if "part_3" in v.path]
    assert len(slots) == 2 * 5
    assert devices_of(slots) == [3] * 10


def test_parts_stay_where_they_are_when_variables_are_partitioned():
    wide = cn.width.Dense(6, gather=False, devices=[2, 3])
    narrow = cn.width.Dense(1, split="rows", devices=[2, 3])
    net = keras.Sequential([keras.Input([4]), keras.layers.Dense(4), wide, narrow])
    loss = lambda x: tf.squeeze(net(x), axis=1)  # noqa: E731
    trainer = cn.Trainer(loss, keras.optimizers.SGD(0.1, momentum=0.9), devices=2, variables="partitioned")
    before = [part.numpy() for part in wide.logical[0].parts]
    trainer.train_on_batch(np.ones([4, 4], "float32"))
    homes = {name: device[-5:] for name, device in trainer.homes().items() if "part" in name}
    assert {
        name.partition(":")[0][-1] + device for name, device in homes.items() if "momentum" not in name
    } == {
        "0CPU:2",
        "1CPU:3",
    }
    for part, old in zip(wide.logical[0].parts, before, strict=True):
        assert not np.array_equal(part.numpy(), old)


def top_10(model, x):
    return cn.width.top_k(model(x), 10)[1].numpy()


def test_saved_on_4_devices_loaded_on_others(tmp_path):
    """The weights, and the whole model."""
    x, model = sparse(width=WIDTH), autoencoder(4)
    wanted = top_10(model, x)
    gathered = model(x).gather()
    np.testing.assert_array_equal(tf.math.top_k(gathered, 10).indices, wanted)
    model.save_weights(tmp_path / "all.weights.h5")
    model.save(tmp_path / "model.keras")
    for devices in (1, 3):
        other = autoencoder(devices)
        for weight in other.weights:
            weight.assign(tf.zeros_like(weight))
        other.load_weights(tmp_path / "all.weights.h5")
        with cn.width.loading_on(devices):
            loaded = keras.models.load_model(tmp_path / "model.keras")
        for found in (other, loaded):
            assert len(found.layers[-1].kernel.parts) == devices
            assert devices_of(found.layers[-1].kernel.parts) == list(range(devices))
            np.testing.assert_array_equal(top_10(found, x), wanted)
    again = keras.models.load_model(tmp_path / "model.keras")
    assert len(again.layers[-1].kernel.parts) == 4


def test_a_plain_keras_layer_loads_what_was_saved(tmp_path):
    x = tf.ones([2, 6])

    def model(dense):
        return keras.Sequential([keras.Input([6]), dense(9, "relu", devices=4), dense(5, split="rows")])

    def plain(units, activation=None, **_):
        return keras.layers.Dense(units, activation)

    split, whole = model(cn.width.Dense), model(plain)
    split.save_weights(tmp_path / "split.weights.h5")
    whole.load_weights(tmp_path / "split.weights.h5")
    np.testing.assert_allclose(whole(x), split(x), **CLOSE)


def test_functional_model_with_parts_is_the_same_on_any_devices(tmp_path):
    inputs = keras.Input([6])
    parts = cn.width.Dense(9, "relu", gather=False, devices=4)(inputs)
    outputs = keras.layers.Activation("tanh")(cn.width.Dense(5, split="rows", devices=4)(parts))
    model = keras.Model(inputs, outputs)
    x = tf.ones([2, 6])
    model.save(tmp_path / "model.keras")
    with cn.width.loading_on(2):
        loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(loaded(x), model(x), **CLOSE)
    np.testing.assert_allclose(model.predict(x, verbose=0), model(x), **CLOSE)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_checkpoint_on_other_devices(tmp_path, dtype):
    """With TensorFlow's own checkpoints; also into a layer that is built after it."""
    x = tf.ones([2, 6])
    one, two, late = (cn.width.Dense(9, devices=n, dtype=dtype) for n in (4, 3, 1))
    one(x)
    path = tf.train.Checkpoint(layer=one).write(str(tmp_path / "saved"))
    two(x)
    tf.train.Checkpoint(layer=two).read(path).assert_consumed()
    status = tf.train.Checkpoint(layer=late).read(path)
    late(x)
    status.assert_consumed()
    for other in (two, late):
        np.testing.assert_array_equal(other.kernel.numpy(), one.kernel.numpy())
    one.kernel.assign(np.zeros([6, 9], dtype))
    assert not one.kernel.numpy().any()


def test_layers_made_inside_a_function_and_default_devices():
    made = []

    @tf.function
    def first(x):
        if not made:
            made.append(cn.width.Dense(3))
        return made[0](x)

    first(tf.ones([2, 2]))
    assert devices_of(made[0].kernel.parts) == [0, 1, 2]  # all eight, but no more than columns


def test_config():
    layer = cn.width.Dense(9, "relu", gather=False, devices=[3, 1], use_bias=False, name="wide")
    again = cn.width.Dense.from_config(layer.get_config())
    assert again.get_config() == layer.get_config()
    assert again.devices == ("/device:CPU:3", "/device:CPU:1")
    table = cn.width.Embedding(9, 4, split="rows", devices=2)
    assert cn.width.Embedding.from_config(table.get_config()).get_config() == table.get_config()


def test_weights_of_another_width(tmp_path):
    one, two = autoencoder(2, width=53, inner=8), autoencoder(2, width=53, inner=9)
    one.save_weights(tmp_path / "one.weights.h5")
    with pytest.raises(ValueError, match="must be"):
        two.load_weights(tmp_path / "one.weights.h5")
