"""Every value of `reduce=`, wherever variables live, trains what one device does."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from families import long
from fresh import fresh
from partitions import Executed

import colonnade as cn
from colonnade.hardware.probes import collective
from colonnade.hardware.profile import profile
from colonnade.run.move import reductions
from colonnade.run.sync import summation, workers

RNG = np.random.default_rng(0)
IDS = RNG.integers(0, 50, size=(24, 3))
X, Y = RNG.normal(size=(24, 6)), RNG.normal(size=24)
# Float64: what the order of sums may do.
TOLERANCE = 1e-12


@pytest.fixture(autouse=True)
def library(monkeypatch):
    """TensorFlow's own ring in place of the cards' library, between CPU devices."""
    monkeypatch.setattr(collective, "HINT", "ring")
    monkeypatch.setattr(collective, "refusals", lambda devices: ())


class Model:
    """A table that is looked up, layers, a weight that the penalty alone knows; all from fixed numbers."""

    def __init__(self):
        rng = np.random.default_rng(1)
        self.table, self.first, self.second, self.scale = (
            tf.Variable(rng.normal(size=shape)) for shape in ((50, 4), (10, 7), (7,), ())
        )

    def loss(self, x, ids, y):
        looked_up = tf.reduce_mean(tf.nn.embedding_lookup(self.table, ids), axis=1)
        hidden = tf.tanh(tf.concat([x, looked_up], axis=1) @ self.first)
        return (tf.linalg.matvec(hidden, self.second) - y) ** 2 + 0 * self.scale

    def weighted(self, x, ids, y):
        return cn.Weighted(self.loss(x, ids, y), tf.abs(y))

    def penalty(self):
        return 0.1 * tf.reduce_sum(self.first**2) + (self.scale - 1) ** 2

    @property
    def values(self):
        return [v.numpy() for v in (self.table, self.first, self.second, self.scale)]


def trained(devices, rows=24, optimizer=None, loss="loss", penalty=False, **options):
    model = Model()
    trainer = cn.Trainer(
        getattr(model, loss),
        optimizer() if optimizer else keras.optimizers.Adam(0.01),
        devices=devices,
        penalty=model.penalty if penalty else None,
        **options,
    )
    data = (X[:rows], IDS[:rows], Y[:rows])
    trainer.fit(data, batch_size=rows, steps=3, progress=False)
    return model.values, trainer


def assert_as_one_device(devices, way, home, **options):
    way = reductions.LIBRARY if way == "library" else way
    values, trainer = trained(devices, reduce=way, variables=home, **options)
    for one, other in zip(values, trained(1, **options)[0], strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=TOLERANCE)
    first, *others = trainer.replicas()
    assert all(np.array_equal(a, b) for own in others for a, b in zip(own, first, strict=True))
    return trainer


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize(
    ("way", "home"),
    [
        ("ring", "mirrored"),
        *long(("library", "mirrored"), ("ring", "partitioned"), ("ring", "shared")),
        *long(*(("tree", home) for home in ("mirrored", "shared", "partitioned"))),
    ],
)
def test_sums_of_dense_and_sparse_gradients(way, home):
    assert_as_one_device(4, way, home)


def _decayed():
    return keras.optimizers.AdamW(0.01, weight_decay=0.1, global_clipnorm=0.5, use_ema=True)


CASES = {
    "decay, clipping and averages": {"optimizer": _decayed},
    "an uneven batch": {"rows": 23},
    "fewer examples than devices": {"rows": 3},
    "weights": {"loss": "weighted"},
    "a penalty": {"penalty": True},
    "skipping": {"on_nan": "skip"},
    "loss scaling": {"optimizer": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.01))},
}


@pytest.mark.usefixtures("double")
@pytest.mark.sampled(16)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("way", ["ring", "library"])
def test_whatever_is_trained(way, case):
    assert_as_one_device(4, way, "mirrored", **CASES[case])


@pytest.mark.parametrize(
    ("way", "on_nan"), [("ring", "skip"), ("library", "stop"), *long(("ring", "stop"), ("library", "skip"))]
)
def test_a_nan_leaves_everything_as_it_was_and_the_next_step_goes_on(way, on_nan):
    w = tf.Variable(tf.ones([3]))
    way = reductions.LIBRARY if way == "library" else way
    trainer = cn.Trainer(
        lambda x: tf.linalg.matvec(x, w) ** 2,
        keras.optimizers.SGD(0.1),
        devices=3,
        variables="mirrored",
        reduce=way,
        on_nan=on_nan,
    )
    good, bad = np.ones([6, 3], "float32"), np.ones([6, 3], "float32")
    bad[3] = np.nan
    trainer.train_on_batch(good)
    before = w.numpy()
    if on_nan == "stop":
        with pytest.raises(cn.NotFinite, match="CPU:1"):
            trainer.train_on_batch(bad)
    else:
        trainer.train_on_batch(bad)
        assert trainer.skipped == 1
    assert all(np.array_equal(own[0], before) for own in trainer.replicas())
    trainer.train_on_batch(good)
    assert np.isfinite(w.numpy()).all()
    assert not np.array_equal(w.numpy(), before)


def test_the_bytes_that_a_step_moves_are_told():
    """4 000 bytes of gradients on 4 devices: a tree leads to the first one; a ring has equal parts."""

    def links(**options):
        w = tf.Variable(tf.ones([1000]))
        trainer = cn.Trainer(
            lambda x: tf.reduce_sum(x * w, axis=1), keras.optimizers.SGD(0.1), devices=4, **options
        )
        trainer.train_on_batch(tf.ones([4, 1000]))
        sent = dict.fromkeys(trainer.devices, 0.0)
        for (source, _), size in trainer.links().items():
            sent[source] += size
        return list(sent.values())

    assert links(variables="mirrored", reduce="tree") == [8000, 4000, 8000, 4000]
    assert links(variables="mirrored", reduce="ring") == [6000] * 4
    assert sum(links(variables="shared", reduce="ring")) == 3 * 4000 + 3000 + 3 * 4000
    # One parameter, of device 0: all send its gradient there, and read it there.
    assert sum(links(variables="partitioned", reduce="ring")) == 2 * 3 * 4000


def test_the_first_steps_wait_long_for_devices_that_load_their_kernels():
    """Those after them do not: TensorFlow keeps something of each sum for as long as it may wait."""
    w = tf.Variable(tf.ones([3]))
    trainer = cn.Trainer(
        lambda x: tf.linalg.matvec(x, w) ** 2,
        keras.optimizers.SGD(0.1),
        devices=2,
        variables="mirrored",
        reduce=reductions.LIBRARY,
    )
    for _ in range(3):
        trainer.train_on_batch(np.ones([4, 3], "float32"))
    graphs = [function.graph.get_operations() for function in trainer._loop._single.values()]
    sums = [[op for op in ops if op.type == "CollectiveReduceV2"] for ops in graphs]
    waits = [{op.get_attr("timeout_seconds") for op in each} for each in sums]
    assert waits == [{collective.AT_FIRST}, {collective.PATIENCE}]


def step_of(way, **options):
    """The graph of a step with two matrices, as TensorFlow runs it.

    The gradient of the first one passes a sine, which is nowhere else; that of the second does not. They have
    names because TensorFlow lists variables by name and number, and 1000 stands before 999.
    """
    first, second = (tf.Variable(tf.ones([8, 8]), name=name) for name in ("first", "second"))

    @tf.custom_gradient
    def through_a_sine(x):
        return tf.identity(x), tf.sin

    trainer = cn.Trainer(
        lambda x: tf.reduce_sum(through_a_sine(x @ first) @ second, axis=1),
        keras.optimizers.SGD(0.1),
        devices=2,
        variables="mirrored",
        reduce=way,
        **options,
    )
    return Executed(lambda: trainer.train_on_batch(tf.ones([4, 8])))


def every_bucket_waits_for_its_own():
    step = step_of("ring")
    for bucket, late in ((0, False), (1, True)):
        scopes = f"reduction_{bucket}_from"
        adds = [node for node in step.nodes.values() if scopes in node.name and node.op == "AddV2"]
        assert adds
        for node in adds:
            assert any(step.nodes[name].op == "Sin" for name in step.above(node)) == late


def the_guard_waits_for_the_library():
    """An assertion that fails would break sums off, and then TensorFlow refuses all later ones."""
    collective.HINT, collective.refusals = "ring", lambda devices: ()  # as the fixture does
    step = step_of(reductions.LIBRARY)
    sums = {node.name for node in step.all("CollectiveReduceV2")}
    asserts = step.all("Assert")
    assert len(sums) == 2
    assert len(asserts) == 1
    assert sums <= step.above(*asserts)


def sums_go_back_before(decides, on_nan):
    """With the tree, in messages as on cards: the other device waits for the update, not for the sum."""
    workers.bucket_for = summation.bucket_for = lambda devices: 2**20
    step = step_of("tree", on_nan=on_nan)
    arrived = [node for node in step.all("_Recv") if node.device.endswith("CPU:1")]
    above = [step.above(node) for node in arrived]
    sums = [names for names in above if any("reduction_0_from" in name for name in names)]
    undecided = [names for names in sums if not any(step.nodes[name].op == decides for name in names)]
    assert undecided
    updates = [node for node in step.all("AssignSubVariableOp") if node.device.endswith("CPU:1")]
    assert updates
    assert all(any(step.nodes[name].op == decides for name in step.above(node)) for node in updates)


def sums_go_back_before_the_guard_has_asserted():
    sums_go_back_before("Assert", on_nan="stop")


def sums_go_back_before_the_guard_has_chosen():
    sums_go_back_before("Switch", on_nan="skip")


@pytest.mark.parametrize(
    "look",
    [
        every_bucket_waits_for_its_own,
        the_guard_waits_for_the_library,
        sums_go_back_before_the_guard_has_asserted,
        pytest.param(sums_go_back_before_the_guard_has_chosen, marks=pytest.mark.long),
    ],
)
def test_what_sums_wait_for_and_what_waits_for_them(look):
    """In a process of its own: TensorFlow tells of the graphs of other tests too, where there were any."""
    code = f"import sys; sys.path.insert(0, 'tests'); from sync.test_summation import {look.__name__} as look"
    fresh(f"{code}; look()", virtual=2)


@pytest.mark.long
def test_in_a_timeline_sums_begin_before_the_backward_pass_ends():
    """Eight wide layers: the gradients of the last ones are there long before those of the first.

    A device begins to add up while it has products of its own backward pass before it.
    """
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(512, "tanh") for _ in range(8)]
    model = keras.Sequential([keras.Input([512]), *layers, keras.layers.Dense(1)])
    trainer = cn.Trainer(
        lambda x: tf.squeeze(model(x) ** 2, 1),
        keras.optimizers.SGD(1e-5),
        devices=2,
        variables="mirrored",
        reduce="ring",
    )
    batch = tf.ones([512, 512])
    trainer.train_on_batch(batch)
    overlapped = set()
    for _ in range(5):
        ops = profile(lambda: trainer.train_on_batch(batch))  # one step, so whatever is seen is of the same
        for i in range(2):
            products = re.compile(rf"replica_{i}_on_CPU_{i}/.*gradient_tape/")
            backward = [op.end for op in ops if op.op.endswith("MatMul") and products.search(op.name)]
            sums = [op.start for op in ops if op.op == "AddV2" and f"_to_CPU_{i}_bytes" in op.name]
            assert len(backward) >= 9
            assert sums
            overlapped |= {i} if min(sums) < max(backward) else set()
    assert overlapped == {0, 1}
