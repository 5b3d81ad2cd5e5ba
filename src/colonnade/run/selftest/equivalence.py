"""Checks of the self-test that compute: losses, gradients and training on all devices as on one.

Each is a function of the devices. The other side of a comparison does not use the engine: it is NumPy,
Python, or plain Keras on one device.
"""

from collections.abc import Callable, Hashable
from dataclasses import asdict
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from colonnade.errors import AlreadyStarted
from colonnade.hardware import devices as hardware
from colonnade.hardware.doctors.admission import lets_others_in
from colonnade.hardware.placement import short
from colonnade.run.parallel.parallel import Parallel
from colonnade.run.selftest import reference
from colonnade.run.selftest.verdict import Verdict
from colonnade.run.train.trainer import Trainer

STEPS = 5
EPSILON = {"float16": 2.0**-10, "bfloat16": 2.0**-7}

# A loss, an optimizer, and the variables that are trained.
ToTrain = tuple[Callable[..., Any], Any, list[Any]]


def set_up(devices: tuple[str, ...]) -> Verdict:
    """Every device is there, computes what is put on it, and stays as it was set up."""
    soft = tf.config.get_soft_device_placement()
    tf.config.set_soft_device_placement(False)  # or an op for a missing device would run elsewhere
    try:
        ran = []
        for device in devices:
            with tf.device(device):
                ran.append(short((tf.constant([1.0, 2.0]) + 1.0).device))
    finally:
        tf.config.set_soft_device_placement(soft)
    if ran != [short(device) for device in devices] or len(set(ran)) < len(ran):
        return Verdict(False, f"asked for {', '.join(map(short, devices))}, ran on {', '.join(ran)}")
    try:
        hardware.setup(virtual=len(devices) + 17)
    except AlreadyStarted:
        return Verdict(True, f"{len(devices)} devices: {', '.join(ran)}{_mode(devices)}")
    finally:
        tf.config.set_soft_device_placement(soft)
    return Verdict(False, "a second, different setup() was not refused")


def _mode(devices: tuple[str, ...]) -> str:
    """Of cards, if they do not let everybody in: the checks of other processes depend on it."""
    alone = hardware.are_cards(devices) and not lets_others_in(hardware.visible_cards())
    return "; in exclusive-process mode" if alone else ""


def split(devices: tuple[str, ...]) -> Verdict:
    """Slices have the rows and sizes that NumPy gives them, and come back in order."""
    n = len(devices)
    sizes = sorted({1, max(1, n - 1), n, 2 * n + 1, 97})

    def slices(x: Any) -> Any:
        return x + 0, tf.zeros_like(x) + x[0]  # the rows, and for each the first of its slice

    wrong = []
    for size in sizes:
        rows = np.arange(size)
        firsts = np.concatenate(
            [np.full(len(part), part[0]) for part in np.array_split(rows, n) if len(part)]
        )
        same, first = Parallel(slices, devices, "concat")(tf.constant(rows))
        if not (np.array_equal(same, rows) and np.array_equal(first, firsts)):
            wrong.append(size)
    batches = f"batches of {', '.join(map(str, sizes))}"
    return Verdict(not wrong, f"{batches}; wrong for {wrong}" if wrong else batches)


def gradients(devices: tuple[str, ...]) -> Verdict:
    """Outputs of a network, and the gradients of its input and variables, by a tape around the call."""
    model, x = network("float32"), images(2 * len(devices) + 1)
    weights = np.random.default_rng(6).normal(size=[len(x), 4]).astype("float32")
    sources = [variable.value for variable in model.trainable_variables]

    def values(fn: Callable[[Any], Any], rows: Any) -> list[Any]:
        @tf.function(autograph=False)
        def forward_and_backward(x: Any, weights: Any) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = fn(x)
                loss = tf.reduce_sum(weights * y)
            return [y, *tape.gradient(loss, [x, *sources])]

        with tf.device(devices[0]):
            batch = tf.constant(x[rows]), tf.constant(weights[rows])
            return [value.numpy() for value in forward_and_backward.get_concrete_function(*batch)(*batch)]

    order = np.random.default_rng(7).permutation(len(x))
    parts = [values(model, rows) for rows in np.array_split(order, 2)]
    by_row = [np.concatenate(column)[np.argsort(order)] for column in list(zip(*parts, strict=True))[:2]]
    again = [*by_row, *(np.sum(column, axis=0) for column in list(zip(*parts, strict=True))[2:])]
    every = np.arange(len(x))
    several = values(Parallel(model, devices, "concat"), every)
    names = ["outputs", "gradient of the input", *(f"gradient of variable {i}" for i in range(len(sources)))]
    gap = reference.gap_of_values(names, values(model, every), again, several)
    return Verdict(gap.closed, str(gap), asdict(gap))


def placement(devices: tuple[str, ...]) -> Verdict:
    """Where the ops of each replica ran, forward and backward."""
    model = network("float32")
    report = Parallel(model, devices, "concat").placement(images(2 * len(devices)), strict=True)
    used = {phase: set(report.devices(phase)) for phase in ("forward", "backward")}
    idle = [f"{short(d)} ({phase})" for phase, ran in used.items() for d in devices if d not in ran]
    if idle:
        return Verdict(False, f"nothing ran on {', '.join(idle)}")
    return Verdict(True, f"{len(report.ops)} ops, each on the device of its replica")


def variables(mode: str, devices: tuple[str, ...]) -> Verdict:
    """Training on N devices against plain Keras on one."""
    gap = trained(devices, mode, "float32", clipped)
    return Verdict(gap.closed, f"{STEPS} steps: {gap}", asdict(gap))


def mixed_precision(devices: tuple[str, ...]) -> Verdict:
    """Training in half precision on N devices against plain Keras on one."""
    gaps = {half: trained(devices, "auto", half, optimizer) for half, optimizer in HALVES.items()}
    summary = "; ".join(f"{half}: {gap}" for half, gap in gaps.items())
    return Verdict(all(gap.closed for gap in gaps.values()), summary, {h: asdict(g) for h, g in gaps.items()})


def inputs(devices: tuple[str, ...]) -> Verdict:
    """Whole numbers and strings, which live in the memory of the host, through a call and a training."""
    rng = np.random.default_rng(3)
    rows = 3 * len(devices) + 1
    ids = rng.integers(0, 7, [STEPS, rows]).astype("int32")
    words = np.asarray([[f"word {number}" for number in row] for row in rng.integers(0, 99, [STEPS, rows])])
    labels = rng.integers(0, 4, [STEPS, rows]).astype("int32")

    def call(ids: Any, words: Any) -> Any:
        return ids * 3 - 1, tf.strings.join([words, tf.strings.as_string(ids)]), tf.strings.length(words)

    expected = (
        (ids[0] * 3 - 1).tolist(),
        [f"{w}{i}" for w, i in zip(words[0], ids[0], strict=True)],
        [*map(len, words[0])],
    )
    numbers, texts, lengths = Parallel(call, devices, "concat")(tf.constant(ids[0]), tf.constant(words[0]))
    decoded = [text.decode() for text in texts.numpy()]
    if (numbers.numpy().tolist(), decoded, lengths.numpy().tolist()) != expected:
        return Verdict(False, "a call returns other numbers or strings than Python does")

    batches = list(zip(words, ids, labels, strict=True))
    gap = reference.gap(
        *_alone(devices, "hashing", _hashing, batches), _together(devices, "auto", _hashing(), batches)
    )
    return Verdict(gap.closed, f"the call is exact; {STEPS} steps with sparse gradients: {gap}", asdict(gap))


def _hashing() -> ToTrain:
    """Two embeddings, of words by their hash and of numbers; their gradients are sparse."""
    rng = np.random.default_rng(4)
    tables = [tf.Variable(rng.normal(size=[rows, 4]).astype("float32")) for rows in (11, 7)]

    def loss(words: Any, ids: Any, labels: Any) -> Any:
        hashed = tf.strings.to_hash_bucket_fast(words, 11)
        logits = tf.gather(tables[0], hashed) + tf.gather(tables[1], ids)
        return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)

    return loss, keras.optimizers.SGD(0.5), tables


def network(dtype: str) -> Any:
    """A small image classifier, always with the same weights."""
    policy = dtype if dtype == "float32" else f"mixed_{dtype}"
    model = keras.Sequential(
        [
            keras.layers.Input([6, 6, 1], dtype="float32"),
            keras.layers.Conv2D(4, 3, activation="tanh", dtype=policy),
            keras.layers.Flatten(dtype=policy),
            keras.layers.Dense(8, activation="tanh", dtype=policy),
            keras.layers.Dense(4, dtype=policy),
        ]
    )
    rng = np.random.default_rng(0)
    model.set_weights([rng.normal(size=w.shape, scale=0.3).astype("float32") for w in model.get_weights()])
    return model


def images(rows: int) -> Any:
    return np.random.default_rng(1).normal(size=[rows, 6, 6, 1]).astype("float32")


def clipped() -> Any:
    """One update per step, whoever owns the parts, shows in the schedule and in the global norm."""
    rate = keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.8)
    return keras.optimizers.SGD(rate, momentum=0.9, global_clipnorm=1.0)


def scaled() -> Any:
    return keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1, momentum=0.9))


# Small numbers vanish in float16 without a scaled loss; bfloat16 has the range of float32.
HALVES = {"float16": scaled, "bfloat16": clipped}


def trained(devices: tuple[str, ...], mode: str, dtype: str, optimizer: Callable[[], Any]) -> reference.Gap:
    """The network trained on N devices against one, on batches that do not divide evenly."""
    rows = 2 * len(devices) + 1
    labels = np.random.default_rng(2).integers(0, 4, STEPS * rows).astype("int32")
    batches = list(zip(np.split(images(STEPS * rows), STEPS), np.split(labels, STEPS), strict=True))

    def task() -> ToTrain:
        model = network(dtype)

        def loss(x: Any, y: Any) -> Any:
            logits = model(x, training=True)
            assert logits.dtype == dtype, "the policy does not apply"
            return tf.nn.sparse_softmax_cross_entropy_with_logits(y, tf.cast(logits, tf.float32))

        return loss, optimizer(), [variable.value for variable in model.trainable_variables]

    alone, again = _alone(devices, (dtype, optimizer), task, batches)
    return reference.gap(
        alone, again, _together(devices, mode, task(), batches), EPSILON.get(dtype, reference.SINGLE)
    )


# The modes of `variables` are held against the same training on one device.
_known: dict[Hashable, tuple[reference.Training, reference.Training]] = {}


def _alone(
    devices: tuple[str, ...], key: Hashable, task: Callable[[], ToTrain], batches: reference.BatchList
) -> tuple[reference.Training, reference.Training]:
    """A task on one device: as it is, and with the examples in another order and the batch in slices."""
    if (devices, key) not in _known:
        other = reference.permuted(batches)
        _known[devices, key] = (
            reference.train(*task(), batches, device=devices[0]),
            reference.train(*task(), other, device=devices[0], slices=len(devices)),
        )
    return _known[devices, key]


def _together(
    devices: tuple[str, ...], mode: str, task: ToTrain, batches: reference.BatchList
) -> reference.Training:
    """The task on all devices, in one fit: copies that drift apart are not put right between steps."""
    loss, optimizer, variables = task
    start = [variable.numpy() for variable in variables]
    columns = tuple(np.stack(column) for column in zip(*batches, strict=True))
    trainer = Trainer(loss, optimizer, devices=devices, variables=mode)
    history = trainer.fit(tf.data.Dataset.from_tensor_slices(columns), progress=False)
    return reference.Training(start, [v.numpy() for v in variables], np.asarray(history.losses))
