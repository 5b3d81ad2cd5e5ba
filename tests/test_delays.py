"""A race finder: each replica and each update is late in turn, and the result is that of plain Keras.

For how long a replica is busy before it reads its variables is a column of the batch, so one training serves
for all of them: its variables are set back to their first values each time.
"""

from collections import deque

import keras
import numpy as np
import pytest
import tensorflow as tf
from families import kept, long

import colonnade as cn
from colonnade.reason.simulator.staleness import race
from colonnade.run.variables.replica_copies import ReplicaCopies

TURNS = 150  # some 20 ms
STEPS = 4
ROWS = 12
REPLICAS = 3


def busy(turns):
    """A value that is long in coming.

    Not a Python function that sleeps: TensorFlow keeps those, and what is around them, in the order of the
    program, and so hides what is to be found.
    """
    last = tf.cast(tf.reduce_max(turns), tf.int32)
    turn = lambda i, m: (i + 1, tf.tanh(m @ m))  # noqa: E731
    return tf.while_loop(lambda i, m: i < last, turn, (0, tf.ones([100, 100])))[1]


class Late(keras.layers.Layer):
    """Variables that are read late: a parameter whose gradient needs its value, one whose gradient does not,
    and a moving average.
    """

    def __init__(self, constraint=None):
        super().__init__(dtype="float64")
        rising = keras.initializers.Constant(np.linspace(0.5, 1.5, 6).reshape(3, 2))
        self.w = self.add_weight(shape=[3, 2], initializer=rising, constraint=constraint, name="w")
        self.b = self.add_weight(shape=[2], initializer="ones", name="b")
        self.seen = self.add_weight(shape=[2], initializer="zeros", trainable=False, name="seen")

    def call(self, x):
        x, turns = x[:, :-1], x[:, -1:]
        with tf.control_dependencies([busy(turns)]):
            h = x @ self.w**2
            self.seen.assign(0.5 * self.seen + 0.5 * tf.reduce_mean(h, axis=0))
            return h + self.b


def slowed(optimizer):
    """The optimizer, busy for as long as a variable says before it changes a parameter; that variable."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    turns, original = tf.Variable(0, trainable=False), inner.update_step

    def update_step(gradient, variable, learning_rate):
        with tf.control_dependencies([busy(turns)]):
            return original(gradient, variable, learning_rate)

    inner.update_step = update_step
    return turns


def halved(w):
    """A constraint that changes every value, whatever the gradient."""
    return 0.5 * w


OPTIMIZERS = {
    "adamw": lambda: keras.optimizers.AdamW(0.1, weight_decay=0.9),
    "sgd": lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True, weight_decay=0.9),
    "averaged": lambda: keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=1),
    "accumulated": lambda: keras.optimizers.Adam(0.1, weight_decay=0.9, gradient_accumulation_steps=2),
    "scaled": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1, weight_decay=0.9)),
    "clipped": lambda: keras.optimizers.Adam(0.1, weight_decay=0.9, global_clipnorm=0.5),
    "adafactor": lambda: keras.optimizers.Adafactor(0.1, weight_decay=0.9),
    "lion": lambda: keras.optimizers.Lion(0.1, weight_decay=0.9),
    "lamb": lambda: keras.optimizers.Lamb(0.1, weight_decay=0.9),
    "ftrl": lambda: keras.optimizers.Ftrl(0.1, weight_decay=0.9),
    "nadam": lambda: keras.optimizers.Nadam(0.1, weight_decay=0.9),
    "rmsprop": lambda: keras.optimizers.RMSprop(0.1, weight_decay=0.9, centered=True),
    "adagrad": lambda: keras.optimizers.Adagrad(0.1, weight_decay=0.9),
    "adadelta": lambda: keras.optimizers.Adadelta(0.1, weight_decay=0.9),
    "adamax": lambda: keras.optimizers.Adamax(0.1, weight_decay=0.9),
}


def batches(replica=None):
    """The batches of a training in which one replica, or none, is late."""
    random = np.random.default_rng(7)
    late = np.zeros([ROWS, 1])
    if replica is not None:
        late[np.array_split(np.arange(ROWS), REPLICAS)[replica]] = TURNS
    for _ in range(STEPS):
        x = random.normal(size=[ROWS, 3])
        yield np.concatenate([x, late], axis=1), x[:, :2] * 2 + 1


def joined(replica):
    """The same as one array each."""
    return tuple(np.concatenate(column) for column in zip(*batches(replica), strict=True))


class Plain:
    """A model and an optimizer on one device, as Keras trains them."""

    def __init__(self, make, constraint=None):
        self.layer, self.optimizer = Late(constraint), make()
        self.optimizer.build(self.layer.trainable_variables)

    def loss(self, x, y):
        return tf.reduce_mean((self.layer(x) - y) ** 2, axis=1)

    def step(self, x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self.loss(x, y))
            scaled = self.optimizer.scale_loss(loss)
        trained = self.layer.trainable_variables
        self.optimizer.apply(tape.gradient(scaled, [v.value for v in trained]), trained)
        return float(loss)

    def reached(self):
        return [variable.numpy() for variable in self.layer.variables]


def in_lockstep(make, constraint=None):
    """Losses and variables, as one device with the whole batch has them."""
    plain = Plain(make, constraint)
    return [[plain.step(x, y) for x, y in batches()], *plain.reached()]


def parameters_in_lockstep(make, constraint=None):
    """Without the average: of slices of different sizes it is another one."""
    return in_lockstep(make, constraint)[:3]


def one_by_one(make, constraint=None):
    """As one device has them that takes slice after slice."""
    plain = Plain(make, constraint)
    pieces = [zip(*(np.array_split(a, REPLICAS) for a in batch), strict=True) for batch in batches()]
    losses = [np.mean([plain.step(x, y) for x, y in piece]) for piece in pieces]
    return [losses, *plain.reached()[:2]]  # each device has an average of its own


def apart(every, make, constraint=None):
    """As devices have them that train by themselves, and are averaged every so many steps."""
    plains = [Plain(make, constraint) for _ in range(REPLICAS)]
    losses = []
    for step, batch in enumerate(batches(), 1):
        pieces = zip(*(np.array_split(a, REPLICAS) for a in batch), strict=True)
        losses.append(np.mean([plain.step(*piece) for plain, piece in zip(plains, pieces, strict=True)]))
        mean = [np.mean(values, axis=0) for values in zip(*(p.reached() for p in plains), strict=True)]
        if step % every == 0:
            for plain in plains:
                deque(map(lambda v, value: v.assign(value), plain.layer.variables, mean), maxlen=0)
    return [losses, *mean]


class Training(Plain):
    """A way of training on several replicas, of which some may be late."""

    near = 1e-9

    def __init__(self, make, constraint=None, *, slow=False, **options):
        super().__init__(make, constraint)
        self.make, self.constraint = make, constraint
        self.turns = slowed(self.optimizer) if slow else None
        self.options = {"devices": REPLICAS, **options}
        self.prepare()
        self.variables = [*self.layer.variables, *self.optimizer.variables]
        self.first = [variable.numpy() for variable in self.variables]

    def prepare(self):
        self.trainer = cn.Trainer(self.loss, self.optimizer, **self.options)

    def train(self, replica):
        return [self.trainer.train_on_batch(*batch).loss for batch in batches(replica)]

    def result(self, replica):
        for variable, value in zip(self.variables, self.first, strict=True):
            variable.assign(value)
        return [self.train(replica), *self.reached()]

    def check(self, expected):
        """In float64 only the order of sums differs; losses may be kept as float32."""
        if self.turns is None:
            cases = {f"replica {replica}": replica for replica in (None, *range(REPLICAS))}
        else:
            self.turns.assign(TURNS)
            cases = {"updates": None}
        for late, replica in cases.items():
            losses, *variables = self.result(replica)
            np.testing.assert_allclose(losses, expected[0], rtol=2e-6, err_msg=f"late: {late}")
            for actual, value in zip(variables, expected[1:], strict=False):
                np.testing.assert_allclose(actual, value, rtol=self.near, err_msg=f"late: {late}")


class Streamed(Training):
    """Many steps in one call."""

    def train(self, replica):
        return self.trainer.fit(joined(replica), batch_size=ROWS, epochs=1, progress=False).losses


class Fitted(Training):
    """A compiled Keras model, whose loss Keras computes in float32."""

    near, rows = 2e-6, ROWS

    def prepare(self):
        inputs = keras.Input([4], dtype="float64")
        self.model = keras.Model(inputs, self.layer(inputs))
        self.model.compile(self.optimizer, "mse")

    def train(self, replica):
        losses = keras.callbacks.LambdaCallback(on_train_batch_end=lambda _, logs: means.append(logs["loss"]))
        means = []
        x, y = joined(replica)
        options = {"batch_size": self.rows, "shuffle": False, "verbose": 0, "callbacks": [losses]}
        cn.fit(self.model, x, y, **options, **self.options)
        sums = np.array(means) * np.arange(1, STEPS + 1)  # Keras shows the mean since the epoch began
        return np.diff(sums, prepend=0)


class Stepping(keras.Model):
    """With a step of its own, which applies gradients and decay as replicas come to them."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(x, training=True) - tf.cast(y, tf.float64)) ** 2)
            scaled = self.optimizer.scale_loss(loss)
        trained = self.trainable_variables
        self.optimizer.apply(tape.gradient(scaled, [v.value for v in trained]), trained)
        return {"loss": loss}


class Stepped(Fitted):
    """A compiled Keras model with a step of its own."""

    def prepare(self):
        inputs = keras.Input([4], dtype="float64")
        self.model = Stepping(inputs, self.layer(inputs))
        self.model.compile(self.optimizer, "mse")

    def train(self, replica):
        losses = keras.callbacks.LambdaCallback(on_train_batch_end=lambda _, logs: each.append(logs["loss"]))
        each = []
        x, y = joined(replica)
        options = {"batch_size": ROWS, "shuffle": False, "verbose": 0, "callbacks": [losses], "prove": False}
        cn.fit(self.model, x, y, **options, **self.options)
        return each


class Grouped(Fitted):
    """A whole batch for each device: their sizes are equal, so the mean of all is that of one large batch."""

    rows = ROWS // REPLICAS


class Anew(Training):
    """What keeps values between its steps that nobody can set back: a trainer for each training."""

    def result(self, replica):
        other = type(self)(self.make, self.constraint, slow=self.turns is not None, **self.options)
        if self.turns is not None:
            other.turns.assign(self.turns)
        return [other.train(replica), *other.reached()]


def undelayed(**options):
    """As the same training has them if nobody is late."""
    return lambda *args: Anew(*args, **options).result(None)


class Piped(Training):
    """Rows of a pipeline, whose second stage has the variables."""

    def prepare(self):
        stages = [keras.layers.Activation("linear", dtype="float64"), self.layer]
        names = [f"/device:CPU:{i}" for i in range(2 * REPLICAS)]
        rows = [names[2 * i : 2 * i + 2] for i in range(REPLICAS)]
        self.pipeline = cn.Pipeline(stages, rows, micro_batches=1)
        self.trainer = cn.Trainer(self.loss, self.optimizer, devices=self.pipeline)

    def loss(self, x, y):
        return tf.reduce_mean((self.pipeline(x) - y) ** 2, axis=1)


HOMES = ("shared", "mirrored", "partitioned")
CASES = [(home, name, slow) for home in HOMES for name in OPTIMIZERS for slow in (False, True)]
CHOSEN = [("mirrored", "adamw", True), *((home, "adamw", False) for home in HOMES)]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("home", "name", "slow"), kept(CASES, *CHOSEN))
def test_what_is_late_in_lockstep_changes_nothing(home, name, slow):
    make = OPTIMIZERS[name]
    Training(make, slow=slow, variables=home).check(in_lockstep(make))


# Replicas of which none is where the variables are.
ELSEWHERE = [f"/CPU:{i + 1}" for i in range(REPLICAS)]
WAYS = {
    "many steps in a call": (Streamed, {"variables": "mirrored"}, in_lockstep),
    "left out if not finite": (Training, {"variables": "mirrored", "on_nan": "skip"}, in_lockstep),
    "measured": (
        Training,
        {"variables": "mirrored", "sync": cn.Synchronous("measured")},
        parameters_in_lockstep,
    ),
    "fit": (Fitted, {"variables": "mirrored"}, in_lockstep),
    "fit, shared": (Fitted, {"variables": "shared"}, in_lockstep),
    "fit, partitioned": (Fitted, {"variables": "partitioned"}, in_lockstep),
    "own step": (Stepped, {}, in_lockstep),
    "own step, variables elsewhere": (Stepped, {"devices": ELSEWHERE}, in_lockstep),
    "per device": (Grouped, {"per_device": True}, in_lockstep),
    "per device, variables elsewhere": (Grouped, {"per_device": True, "devices": ELSEWHERE}, in_lockstep),
    "pipeline": (Piped, {}, in_lockstep),
    "local": (Training, {"sync": cn.LocalSGD(2)}, lambda *args: apart(2, *args)),
    "local, streamed": (Streamed, {"sync": cn.LocalSGD(1)}, lambda *args: apart(1, *args)),
    "outer": (Anew, {"sync": cn.DiLoCo(2)}, undelayed(sync=cn.DiLoCo(2))),
    "elastic": (Anew, {"sync": cn.Elastic(2, 0.2)}, undelayed(sync=cn.Elastic(2, 0.2))),
    "asynchronous": (Training, {"sync": cn.Asynchronous(order=race([1.0] * REPLICAS, 0))}, one_by_one),
}
WAY_CASES = [(way, name, slow) for way in WAYS for name in ("adamw", "averaged") for slow in (False, True)]
WAYS_CHOSEN = [
    (way, "adamw", False)
    for way in ("many steps in a call", "fit", "own step", "per device", "pipeline", "local", "asynchronous")
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("way", "name", "slow"), kept(WAY_CASES, *WAYS_CHOSEN))
def test_what_is_late_in_other_ways_of_training_changes_nothing(way, name, slow):
    kind, options, reference = WAYS[way]
    kind(OPTIMIZERS[name], slow=slow, **options).check(reference(OPTIMIZERS[name]))


@pytest.mark.parametrize("home", kept(HOMES, "mirrored"))
def test_a_constraint_waits_for_late_replicas(home):
    make = OPTIMIZERS["sgd"]
    Training(make, halved, variables=home).check(in_lockstep(make, halved))


@pytest.mark.parametrize(("kind", "options"), [(Stepped, {}), *long((Grouped, {"per_device": True}))])
@pytest.mark.parametrize("devices", [ELSEWHERE, *long(REPLICAS)])
def test_replicas_that_are_late_to_copy_the_variables_change_nothing(kind, options, devices, monkeypatch):
    """The first one writes to the variables themselves."""
    turns, original = tf.Variable(0, trainable=False), ReplicaCopies.begin

    def begin(copies):
        with tf.control_dependencies([busy(turns)]):
            original(copies)

    monkeypatch.setattr(ReplicaCopies, "begin", begin)
    training = kind(OPTIMIZERS["adamw"], devices=devices, **options)
    turns.assign(TURNS)
    losses, *variables = training.result(None)
    expected = in_lockstep(OPTIMIZERS["adamw"])
    np.testing.assert_allclose(losses, expected[0], rtol=2e-6)
    for actual, value in zip(variables, expected[1:], strict=True):
        np.testing.assert_allclose(actual, value, rtol=training.near)
