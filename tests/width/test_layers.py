"""Layers split by width against the same layers on one device.

A sum over columns that are in parts is added in another order than the whole one, so results agree
to a few units in the last place of float32: 1e-5 of the largest value here. Where no sum is cut
(columns, lookups) the same tolerance covers that a narrower matrix product may be blocked otherwise.
"""

from collections import Counter
from functools import cache

import keras
import numpy as np
import pytest
import tensorflow as tf
from families import long
from kernels import plain

import colonnade as cn
from colonnade.run.batch.split import Arguments
from colonnade.run.move.on_device import on

CLOSE = {"rtol": 1e-5, "atol": 1e-6}
WIDTH = 1003


def devices_of(weights):
    return [tf.DeviceSpec.from_string(w.value.device).device_index for w in weights]


def sparse(rows=6, width=50, seed=0):
    rng = np.random.default_rng(seed)
    dense = np.where(rng.random([rows, width]) < 0.1, rng.random([rows, width]), 0).astype("float32")
    dense[:, 3] = 1.0
    return tf.sparse.from_dense(dense)


def autoencoder(devices, width=WIDTH, inner=32):
    keras.utils.set_random_seed(1)
    return keras.Sequential(
        [
            keras.Input([width], sparse=True),
            cn.width.SparseDense(inner, "relu", gather=False, devices=devices),
            cn.width.Dense(inner, "relu", split="rows", devices=devices),
            cn.width.Dense(width, gather=False, devices=devices),
        ]
    )


def plain_autoencoder(width=WIDTH, inner=32):
    keras.utils.set_random_seed(1)
    return keras.Sequential(
        [
            keras.Input([width]),
            keras.layers.Dense(inner, "relu"),
            keras.layers.Dense(inner, "relu"),
            keras.layers.Dense(width),
        ]
    )


def loss_and_gradients(model, x, loss):
    @tf.function(autograph=False)
    def both():
        with tf.GradientTape() as tape:
            value = tf.reduce_mean(loss(model(x)))
        return value, tape.gradient(value, model.trainable_variables)

    return both()


def whole(model, gradients):
    """The gradients of parts put together, in the order of a model without parts."""
    by_part = {v.value.ref(): g for v, g in zip(model.trainable_variables, gradients, strict=True)}
    return [
        np.concatenate([tf.convert_to_tensor(by_part[p.value.ref()]) for p in logical.parts], logical.axis)
        for layer in model.layers
        for logical in layer.logical
    ]


@pytest.mark.parametrize("devices", [*long(1, 2), 4, [5, 2, 7]])
def test_sparse_autoencoder_equals_one_device(devices):
    """1 003 columns over 4 devices; loss and gradients are those of plain Keras layers."""
    x = sparse(width=WIDTH)
    dense = tf.sparse.to_dense(x)
    model, plain = autoencoder(devices), plain_autoencoder()
    value, gradients = loss_and_gradients(model, x, lambda z: cn.width.softmax_cross_entropy(x, z))
    wanted, wanted_gradients = loss_and_gradients(
        plain, dense, lambda z: -tf.reduce_sum(dense * tf.nn.log_softmax(z), axis=1)
    )
    np.testing.assert_allclose(value, wanted, rtol=1e-6)
    for found, expected in zip(whole(model, gradients), wanted_gradients, strict=True):
        np.testing.assert_allclose(found, expected, **CLOSE)


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


def test_work_is_done_where_the_part_is():
    """Forward, backward and the update of each part run on its device."""
    model, x = autoencoder(4, width=53, inner=8), sparse(width=53)
    optimizer = keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)

    def step():
        with tf.GradientTape() as tape:
            value = tf.reduce_mean(cn.width.softmax_cross_entropy(x, model(x)))
        optimizer.apply(tape.gradient(value, model.trainable_variables), model.trainable_variables)
        return value

    report = cn.placement(step)
    assert report.moved == ()
    for op, wanted in {"MatMul": 2 + 4, "SparseTensorDenseMatMul": 2, "Exp": 1, "ReluGrad": 1}.items():
        rows = [row for row in report.ops if op == plain(row.op)]
        spread = Counter(row.actual for row in rows)
        extra = {"/device:CPU:0": 1} if op == "ReluGrad" else {}  # that of the sum
        assert spread == Counter({f"/device:CPU:{i}": wanted for i in range(4)}) + Counter(extra), op


def test_the_trainer_updates_each_part_where_it_is():
    first = cn.width.Dense(6, gather=False, devices=3)
    second = cn.width.Dense(2, split="rows", devices=3)

    def loss(x):
        return tf.reduce_sum(second(first(x)) ** 2, axis=1)

    engine = cn.Trainer(loss, keras.optimizers.Adam(0.01), devices=1)._engine
    arguments = Arguments((tf.ones([4, 5]),), {}, ["x"])
    engine.prepare(arguments)
    report = cn.placement(lambda: engine.step(arguments).loss)
    roots = Counter(row.actual for row in report.ops if row.op == "Sqrt")
    # Adam takes two roots per variable: of two kernels and a bias; the first device has the bias of the sum.
    assert roots == {"/device:CPU:0": 8, "/device:CPU:1": 6, "/device:CPU:2": 6}
    # The sums that tell whether gradients are finite are taken there as well.
    sums = Counter(row.actual for row in report.ops if row.op == "Sum")
    assert sums["/device:CPU:1"] == sums["/device:CPU:2"] == 3


def graph_ops(function, *args):
    graph = tf.function(function, autograph=False).get_concrete_function(*args).graph.as_graph_def()
    return Counter(node.op for node in graph.node)


def test_columns_then_rows_need_one_reduction():
    x = tf.ones([3, 6])
    for gather, reductions, gathers in ((False, 1, 0), (True, 1, 1)):
        first = cn.width.Dense(10, "relu", gather=gather, devices=4)
        second = cn.width.Dense(5, split="rows", devices=4)
        second(first(x))
        ops = graph_ops(lambda x, first=first, second=second: second(first(x)), x)
        # Three sums, each of a fixed shape, for four devices.
        assert (ops["EnsureShape"], ops["ConcatV2"]) == (3 * reductions, gathers)


def test_the_gradient_of_columns_then_rows_needs_one_reduction_more():
    """That of the copies of x; where x is data it is pruned."""
    x = tf.ones([3, 6])
    first = cn.width.Dense(10, "relu", gather=False, devices=4)
    second = cn.width.Dense(5, split="rows", devices=4)
    second(first(x))

    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = second(first(x))
        return tape.gradient(y, x)

    ops = graph_ops(gradient, x)
    assert (ops["EnsureShape"], ops["ConcatV2"]) == (2 * 3, 0)


def test_no_op_has_all_logits():
    model, x = autoencoder(4), sparse(width=WIDTH)
    labels = tf.constant([0, 1002, 500, 250, 251, 7])

    @tf.function(autograph=False)
    def both():
        with tf.GradientTape() as tape:
            value = cn.width.softmax_cross_entropy(labels, model(x))
        return value, tape.gradient(value, model.trainable_variables)

    graph = both.get_concrete_function().graph
    shapes = [out.shape for op in graph.get_operations() for out in op.outputs if out.shape.rank == 2]
    assert [6, 251] in shapes
    assert [6, WIDTH] not in shapes
    assert [32, WIDTH] not in shapes


@pytest.mark.parametrize("shape", [(7,), (2, 3)])
@pytest.mark.parametrize("num_devices", [1, 3])
def test_softmax_cross_entropy_of_class_numbers(shape, num_devices):
    rng = np.random.default_rng(2)
    x = tf.constant(rng.normal(size=[*shape, 4]).astype("float32") * 50)  # large logits
    labels = tf.constant(rng.integers(0, 11, shape))
    layer = cn.width.Dense(11, gather=False, devices=num_devices)

    def both(loss):
        with tf.GradientTape() as tape:
            tape.watch(x)
            losses = loss(layer(x))
        return losses, tape.gradient(losses, x)

    found = both(lambda z: cn.width.softmax_cross_entropy(labels, z))
    wanted = both(lambda z: tf.nn.sparse_softmax_cross_entropy_with_logits(labels, z.gather()))
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
    plain = cn.width.softmax_cross_entropy(labels, layer(x).gather())
    np.testing.assert_allclose(plain, wanted[0], rtol=1e-5, atol=1e-5)


def test_half_precision():
    layer = cn.width.Dense(9, gather=False, devices=2, dtype="mixed_float16")
    logits = layer(tf.ones([3, 4]))
    assert logits.tensors[0].dtype == tf.float16
    losses = cn.width.softmax_cross_entropy(tf.constant([0, 4, 8]), logits)
    wanted = tf.nn.sparse_softmax_cross_entropy_with_logits([0, 4, 8], tf.cast(logits.gather(), tf.float32))
    assert losses.dtype == tf.float16
    np.testing.assert_allclose(losses, wanted, rtol=1e-3)  # float16 has 11 bits


@pytest.mark.parametrize("bad", [-1, 11])
def test_labels_out_of_range(bad):
    layer = cn.width.Dense(11, gather=False, devices=3)
    for call in (cn.width.softmax_cross_entropy, tf.function(cn.width.softmax_cross_entropy)):
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"outside the valid range of \[0, 11\)"):
            call(tf.constant([3, bad]), layer(tf.ones([2, 4])))


@pytest.mark.parametrize("split", ["columns", "rows"])
@pytest.mark.parametrize("shape", [(6, 10), (2, 3, 10)])
def test_dense_equals_keras(split, shape):
    x = tf.constant(np.random.default_rng(0).normal(size=shape).astype("float32"))
    keras.utils.set_random_seed(3)
    plain = keras.layers.Dense(7, "tanh", bias_initializer="uniform")
    keras.utils.set_random_seed(3)
    layer = cn.width.Dense(7, "tanh", bias_initializer="uniform", split=split, devices=3)

    def both(layer):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x)
        return y, tape.gradient(y, x)

    for found, wanted in zip(both(layer), both(plain), strict=True):
        np.testing.assert_allclose(found, wanted, **CLOSE)


@pytest.mark.parametrize("split", ["columns", "rows"])
def test_sparse_dense_equals_dense(split):
    x = sparse()
    keras.utils.set_random_seed(3)
    plain = keras.layers.Dense(7)
    keras.utils.set_random_seed(3)
    layer = cn.width.SparseDense(7, split=split, devices=4)

    @tf.function(autograph=False)
    def of_values(values):
        with tf.GradientTape() as tape:
            tape.watch(values)
            y = layer(tf.SparseTensor(x.indices, values, x.dense_shape))
        return y, tape.gradient(y, values)

    y, gradient = of_values(x.values)
    dense = tf.sparse.to_dense(x)
    with tf.GradientTape() as tape:
        tape.watch(dense)
        wanted = plain(dense)
    np.testing.assert_allclose(y, wanted, **CLOSE)
    np.testing.assert_allclose(gradient, tf.gather_nd(tape.gradient(wanted, dense), x.indices), **CLOSE)
    ops = graph_ops(of_values.python_function, x.values)
    assert ops["SparseToDense"] == 0
    assert ops["SparseTensorDenseMatMul"] >= 4


@pytest.mark.parametrize("split", ["columns", "rows"])
def test_embedding_equals_keras(split):
    ids = tf.constant([[0, 10, 3], [3, 3, 9]])
    keras.utils.set_random_seed(3)
    plain = keras.layers.Embedding(11, 6)
    keras.utils.set_random_seed(3)
    layer = cn.width.Embedding(11, 6, split=split, devices=4)
    found, wanted = layer(ids), plain(ids)
    np.testing.assert_array_equal(found, wanted)
    for model in (layer, plain):
        optimizer = keras.optimizers.SGD(0.1)

        @tf.function(autograph=False)
        def step(model=model, optimizer=optimizer):
            with tf.GradientTape() as tape:
                value = tf.reduce_sum(model(ids) ** 2)
            gradients = tape.gradient(value, model.trainable_variables)
            assert all(isinstance(g, tf.IndexedSlices) for g in gradients)
            optimizer.build(model.trainable_variables)
            optimizer.apply(gradients, model.trainable_variables)

        step()
    table = layer.embeddings.numpy()
    np.testing.assert_allclose(table, plain.embeddings, **CLOSE)


def test_a_word_outside_the_vocabulary():
    for split in ("columns", "rows"):
        layer = cn.width.Embedding(11, 6, split=split, devices=3)
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"\[0, 11\)"):
            layer(tf.constant([3, 11]))


def test_embedding_hands_its_parts_on():
    ids = tf.constant([[0, 10, 3], [3, 3, 9]])
    model = keras.Sequential(
        [
            keras.Input([3], dtype="int32"),
            cn.width.Embedding(11, 8, gather=False, devices=4),
            cn.width.Dense(5, split="rows", devices=4),
        ]
    )
    table = model.layers[0].embeddings.numpy()
    kernel = model.layers[1].kernel.numpy()
    np.testing.assert_allclose(model(ids), table[ids] @ kernel, **CLOSE)


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
    """D3 with TensorFlow's own checkpoints; also into a layer that is built after it."""
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


def train(num_parts, **options):
    model, x = autoencoder(num_parts, width=203, inner=16), sparse(8, 203)

    def loss(x):
        return cn.width.softmax_cross_entropy(x, model(x))

    trainer = cn.Trainer(loss, keras.optimizers.SGD(0.1, momentum=0.9), **options)
    losses = [trainer.train_on_batch(x).loss for _ in range(4)]
    return losses, model, trainer


@cache
def trained(num_parts):
    return train(num_parts, devices=1)


@pytest.mark.parametrize("variables", ["mirrored", *long("shared")])
@pytest.mark.long
def test_a_trainer_on_several_devices_is_right_too(variables):
    """Not what to do: every slice visits all parts. But the numbers are those of one device."""
    found, _, _ = train(3, devices=2, variables=variables)
    np.testing.assert_allclose(found, trained(1)[0], rtol=1e-5)


@pytest.mark.long
def test_run_twice_bit_for_bit():
    """D4."""
    (losses, model, trainer), (again, other, _) = trained(4), train(4, devices=1)
    assert losses == again
    for a, b in zip(model.weights, other.weights, strict=True):
        np.testing.assert_array_equal(a, b)
    homes = {name: device[-5:] for name, device in trainer.homes().items() if "kernel_part_2" in name}
    assert len(homes) == 2 * len(model.layers)
    assert set(homes.values()) == {"CPU:2"}


def test_training_equals_one_device():
    (found, model, _), (wanted, single, _) = trained(4), trained(1)
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    for a, b in zip(model.layers, single.layers, strict=True):
        for mine, whole in zip(a.logical, b.logical, strict=True):
            np.testing.assert_allclose(mine.numpy(), whole.numpy(), **CLOSE)


def conv_net(num_devices):
    keras.utils.set_random_seed(4)
    tower = keras.Sequential(
        [
            keras.Input([8, 8, 1]),
            keras.layers.Conv2D(4, 3, activation="relu"),
            keras.layers.Conv2D(8, 3, strides=2, activation="relu"),
            keras.layers.Flatten(),
        ]
    )
    wide = keras.Sequential(
        [
            keras.Input([32]),
            cn.width.Dense(30, "relu", gather=False, devices=num_devices),
            cn.width.Dense(12, "relu", split="rows", devices=num_devices),
            cn.width.Dense(10, gather=False, devices=num_devices),
        ]
    )
    return tower, wide


@pytest.mark.long
def test_convolutions_by_data_and_wide_layers_by_width():
    """The tower on slices of the batch, the wide layers in parts, as on one device."""
    rng = np.random.default_rng(0)
    images = rng.normal(size=[10, 8, 8, 1]).astype("float32")
    labels = rng.integers(0, 10, 10)

    def losses(num_devices):
        tower, wide = conv_net(num_devices)
        features = cn.parallel(tower, devices=num_devices)

        def loss(images, labels):
            return cn.width.softmax_cross_entropy(labels, wide(features(images)))

        trainer = cn.Trainer(loss, keras.optimizers.SGD(0.1), devices=1)
        found = [trainer.train_on_batch(images, labels).loss for _ in range(4)]
        return found, tf.function(loss)

    found, loss = losses(4)
    wanted, _ = losses(1)
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    report = cn.placement(loss, images, labels)
    for op in ("Conv2D", "MatMul"):
        places = {row.actual for row in report.ops if plain(row.op) == op and "Fused" in row.op}
        assert places == {f"/device:CPU:{i}" for i in range(4)}


def test_work_on_a_device_has_its_gradient_there():
    x, y = tf.constant([2.0]), tf.constant([1, 2])

    def gradient(x, y):
        with tf.GradientTape() as tape:
            tape.watch(x)
            result = on("/device:CPU:3", lambda x, y: tf.sin(x) * tf.cast(y, tf.float32), x, y)
        return result, tape.gradient(result, x)

    report = cn.placement(gradient, x, y)
    assert {row.actual for row in report.ops if row.op in ("Sin", "Cos")} == {"/device:CPU:3"}
    np.testing.assert_allclose(gradient(x, y)[1], 3 * np.cos([2.0]), rtol=1e-6)


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


def test_compressed_rows():
    scipy_sparse = pytest.importorskip("scipy.sparse")
    x = sparse()
    csr = scipy_sparse.csr_matrix(tf.sparse.to_dense(x).numpy())
    np.testing.assert_array_equal(tf.sparse.to_dense(cn.width.from_csr(csr)), tf.sparse.to_dense(x))


BAD = {
    "more devices than columns": (lambda: cn.width.Dense(3, devices=4), "4 devices cannot share 3 columns"),
    "more devices than rows": (
        lambda: cn.width.Dense(9, split="rows", devices=4)(tf.ones([2, 3])),
        "4 devices cannot share 3 rows",
    ),
    "more devices than words": (
        lambda: cn.width.Embedding(2, 9, split="rows", devices=3),
        "3 devices cannot share 2 rows",
    ),
    "unknown split": (lambda: cn.width.Dense(3, split="diagonal"), "must be one of columns, rows"),
    "no devices": (lambda: cn.width.Dense(3, devices=0), "must be a count from 1 up"),
    "an empty list": (lambda: cn.width.Dense(3, devices=[]), "names no device"),
    "no units": (lambda: cn.width.Dense(0), "must be a whole number from 1 up"),
    "parts of a sum": (lambda: cn.width.Dense(3, split="rows", gather=False), "is a sum"),
    "softmax of parts": (lambda: cn.width.Dense(3, "softmax", devices=2), "needs whole rows"),
    "TensorFlow's softmax": (lambda: cn.width.Dense(3, tf.nn.softmax, devices=2), "needs whole rows"),
    "a softmax layer": (lambda: cn.width.Dense(3, keras.layers.Softmax(), devices=2), "needs whole rows"),
    "a function of rows": (
        lambda: cn.width.Dense(3, lambda v: v / tf.norm(v, axis=-1, keepdims=True), devices=2),
        "needs whole rows",
    ),
    "an activation with weights": (
        lambda: cn.width.Dense(3, keras.layers.PReLU(), devices=2),
        "needs whole rows",
    ),
    "sparse into dense": (lambda: cn.width.Dense(3, devices=2)(sparse()), "cn.width.SparseDense"),
    "dense into sparse": (lambda: cn.width.SparseDense(3, devices=2)(tf.ones([2, 3])), "tf.SparseTensor"),
    "sparse into embedding": (lambda: cn.width.Embedding(9, 3, devices=2)(sparse()), "whole numbers"),
    "parts into columns": (
        lambda: cn.width.Dense(4, devices=2)(cn.width.Dense(4, gather=False, devices=2)(tf.ones([2, 3]))),
        "needs all of them",
    ),
    "parts of other devices": (
        lambda: cn.width.Dense(4, split="rows", devices=3)(
            cn.width.Dense(4, gather=False, devices=2)(tf.ones([2, 3]))
        ),
        "the layer before has 2 parts",
    ),
    "labels of another shape": (
        lambda: cn.width.softmax_cross_entropy(tf.constant([[1]]), tf.ones([2, 3])),
        "without their last dim",
    ),
    "labels that are no numbers of classes": (
        lambda: cn.width.softmax_cross_entropy(tf.ones([2]), tf.ones([2, 3])),
        "must be class numbers",
    ),
    "sparse labels of another width": (
        lambda: cn.width.softmax_cross_entropy(sparse(), tf.ones([6, 3])),
        "shape of the logits",
    ),
    "parts into an operation": (
        lambda: tf.nn.relu(cn.width.Dense(4, gather=False, devices=2)(tf.ones([2, 3]))),
        r"Parts of \(2, 2\).*no single tensor",
    ),
    "more than there are": (lambda: cn.width.top_k(tf.ones([2, 3]), 4), "from 1 to the 3 columns"),
    "other devices to load on": (lambda: cn.width.loading_on(0).__enter__(), "must be a count"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name):
    call, message = BAD[name]
    with pytest.raises(cn.InvalidArgument, match=message):
        call()


def test_everything_wrong_comes_at_once():
    with pytest.raises(cn.InvalidArgument) as caught:
        cn.width.Dense(0, split="diagonal", gather=3)
    assert [problem.argument for problem in caught.value.problems] == ["units", "split", "gather"]
    with pytest.raises(cn.InvalidArgument, match="must be one of columns, rows"):
        cn.width.Dense(3, split=["rows"])


def test_weights_of_another_width(tmp_path):
    one, two = autoencoder(2, width=53, inner=8), autoencoder(2, width=53, inner=9)
    one.save_weights(tmp_path / "one.weights.h5")
    with pytest.raises(ValueError, match="must be"):
        two.load_weights(tmp_path / "one.weights.h5")


def test_activations_of_single_elements_may_be_any_function():
    x = tf.random.stateless_normal([4, 3], (1, 2))
    for activation in (tf.nn.relu, keras.layers.LeakyReLU(), lambda v: v * tf.sigmoid(v)):
        layer = cn.width.Dense(5, activation, devices=2)
        found = layer(x)
        np.testing.assert_allclose(found, activation(x @ layer.kernel.numpy()), rtol=1e-5, atol=1e-6)


def ruled(dense, split, **rules):
    """A layer with rules for its weights, and one behind it."""
    keras.utils.set_random_seed(1)
    options = {} if dense is keras.layers.Dense else {"split": split, "devices": 3}
    return keras.Sequential([keras.Input([7]), dense(8, "tanh", **rules, **options), keras.layers.Dense(2)])


@pytest.mark.parametrize("split", ["columns", "rows"])
def test_regularisers_and_constraints_are_those_of_the_whole(split):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=[12, 7]).astype("float32"), rng.normal(size=[12, 2]).astype("float32")
    norm = keras.constraints.MaxNorm(0.5, axis=0 if split == "columns" else 1)
    rules = {
        "kernel_regularizer": keras.regularizers.L1L2(0.1, 0.2),
        "bias_regularizer": "l2",
        "kernel_constraint": norm,
        "bias_constraint": "non_neg",
    }
    models = [ruled(dense, split, **rules) for dense in (keras.layers.Dense, cn.width.Dense)]
    fits = [keras.Model.fit, lambda *args, **options: cn.fit(*args, devices=2, **options)]
    losses = []
    for model, fit in zip(models, fits, strict=True):
        model.compile(keras.optimizers.Adam(0.05, global_clipnorm=0.1), "mse")
        losses.append(fit(model, x, y, batch_size=6, epochs=3, shuffle=False, verbose=0).history["loss"])
    plain, wide = (model.layers[0] for model in models)
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)
    # Adam divides by the root of small second moments.
    np.testing.assert_allclose(wide.kernel.numpy(), plain.kernel.numpy(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(wide.bias.numpy(), plain.bias.numpy(), rtol=1e-4, atol=1e-5)
    again = cn.width.Dense.from_config(wide.get_config())
    assert again.get_config() == wide.get_config()
    assert again.rules.constraints["kernel"].max_value == 0.5


@pytest.mark.parametrize(
    ("make", "argument"),
    [
        (lambda: cn.width.Dense(4, split="rows", kernel_constraint="max_norm"), "kernel_constraint"),
        (lambda: cn.width.Dense(4, kernel_regularizer="orthogonal_regularizer"), "kernel_regularizer"),
        (lambda: cn.width.Dense(4, bias_constraint="unit_norm"), "bias_constraint"),
        (lambda: cn.width.Embedding(9, 4, embeddings_regularizer=tf.norm), "embeddings_regularizer"),
        (lambda: cn.width.Dense(4, gather=False, activity_regularizer="l2"), "activity_regularizer"),
    ],
)
def test_rules_for_whole_weights_are_refused(make, argument):
    with pytest.raises(cn.InvalidArgument) as caught:
        make()
    assert [problem.argument for problem in caught.value.problems] == [argument]


def test_optimizers_that_look_at_whole_variables_are_refused():
    x, y = np.ones([4, 7], "float32"), np.ones([4, 2], "float32")
    wrong = {
        "Adafactor": lambda: keras.optimizers.Adafactor(0.1),
        "Lamb": lambda: keras.optimizers.Lamb(0.1),
        "Muon": lambda: keras.optimizers.Muon(0.1),
        "clipnorm=1.0": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1, clipnorm=1.0)),
    }
    for name, optimizer in wrong.items():
        model = ruled(cn.width.Dense, "columns")
        before = model.get_weights()
        says = f"(?s){name}.*looks at a whole variable at once, and .*kernel_part_0"
        trainer = cn.Trainer(lambda x, y, m=model: tf.reduce_sum((m(x) - y) ** 2, 1), optimizer(), devices=1)
        with pytest.raises(cn.InvalidArgument, match=says):
            trainer.train_on_batch(x, y)
        model.compile(optimizer(), "mse")
        with pytest.raises(cn.InvalidArgument, match=says):
            cn.fit(model, x, y, devices=1, verbose=0)
        assert all((one == other).all() for one, other in zip(model.get_weights(), before, strict=True))
    # One part is the whole.
    layer = cn.width.Dense(2, devices=1)
    layer(x)
    loss = lambda x, y: tf.reduce_sum((layer(x) - y) ** 2, 1)  # noqa: E731
    assert cn.Trainer(loss, keras.optimizers.Lamb(0.1), devices=1).train_on_batch(x, y).step == 1
