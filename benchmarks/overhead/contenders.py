"""The contenders, one per process: `contenders.py NAME [DEVICES] [STEPS]` prints its figures as JSON.

Every timing begins after the imports. Times per step are in microseconds, times to the first result
in seconds.
"""

import json
import sys
import time
from collections.abc import Callable

import numpy as np
import tensorflow as tf

RNG = np.random.default_rng(0)
BATCHES, ROWS = 50, 1000  # also the number of steps per call, where a call makes several
IMAGES = 256  # the same batch for any number of devices, so that only the number of devices differs
CHUNKS = 20


def quadratic_data():
    x = RNG.uniform(-1, 1, (BATCHES, ROWS, 1)).astype("float32")
    return x, 5 * x**2 + 3


def per_step(*steps: Callable[[int], object], count: int, each: int = 1) -> list[float]:
    """Microseconds per step of functions that take turns; a call makes `each` steps.

    The fastest of many chunks counts: what else the machine does can only add to it.
    """
    calls = max(1, count // CHUNKS // each)
    times: list[list[float]] = [[] for _ in steps]
    for step in steps:
        for i in range(max(3, 50 // each)):
            step(i)
    for _ in range(CHUNKS):
        for step, mine in zip(steps, times, strict=True):
            start = time.perf_counter()
            for i in range(calls):
                step(i)
            mine.append((time.perf_counter() - start) / calls / each * 1e6)
    return [min(mine) for mine in times]


def sessions(num_devices: int, count: int) -> dict[str, float]:
    """The original idea: a graph with a tower per device, run by a session."""
    v1 = tf.compat.v1
    v1.disable_v2_behavior()

    def towers(fn, **tensors):
        split = {name: tf.split(tensor, num_devices) for name, tensor in tensors.items()}
        outputs = []
        for i in range(num_devices):
            scope = v1.variable_scope(v1.get_variable_scope(), reuse=v1.AUTO_REUSE)
            with tf.device(f"/device:CPU:{i}"), scope:
                outputs.append(fn(**{name: slices[i] for name, slices in split.items()}))
        return tf.concat(outputs, axis=0)

    def model(x):
        w = v1.get_variable("w", [3, 1], initializer=tf.zeros_initializer())
        return tf.concat([x * x, x, tf.ones_like(x)], axis=1) @ w

    xs, ys = quadratic_data()
    x, y = (v1.placeholder(tf.float32, [ROWS, 1]) for _ in range(2))
    loss = tf.reduce_mean((towers(model, x=x) - y) ** 2)
    train = v1.train.AdamOptimizer(0.1).minimize(loss, colocate_gradients_with_ops=True)
    with v1.Session(config=v1.ConfigProto(device_count={"CPU": num_devices})) as session:
        session.run(v1.global_variables_initializer())

        def step(i):
            return session.run([train, loss], {x: xs[i % BATCHES], y: ys[i % BATCHES]})

        return {"step": per_step(step, count=count)[0]}


def quadratic(num_devices: int | None):
    """One step of the fit on that many devices; None for the function by itself, without make_parallel."""
    import keras

    import colonnade as cn

    w = tf.Variable(tf.zeros([3, 1]))
    optimizer = keras.optimizers.Adam(0.1)
    optimizer.build([w])

    def model(x):
        return tf.concat([x * x, x, tf.ones_like(x)], axis=1) @ w

    def train(x, y):
        with tf.GradientTape() as tape:
            output = cn.make_parallel(model, num_devices, x=x) if num_devices else model(x)
            loss = tf.reduce_mean((output - y) ** 2)
        optimizer.apply([tape.gradient(loss, w)], [w])
        return loss

    return train


def setup(num_devices: int) -> None:
    import colonnade as cn

    cn.setup(virtual=num_devices)


def fit(num_devices: int, count: int, *, tensors: bool = False) -> dict[str, float]:
    """The fit, a step per call of a tf.function, which gets NumPy arrays or tensors."""
    setup(num_devices)
    xs, ys = quadratic_data()
    if tensors:
        xs, ys = ([tf.constant(part) for part in whole] for whole in (xs, ys))
    fast, plain = tf.function(quadratic(num_devices)), tf.function(quadratic(None))
    # The loss is fetched at every step, as a session does.
    step, alone = per_step(
        lambda i: fast(xs[i % BATCHES], ys[i % BATCHES]).numpy(),
        lambda i: plain(xs[i % BATCHES], ys[i % BATCHES]).numpy(),
        count=count,
    )
    return {"step": step, "plain": alone}


def fit_tensors(num_devices: int, count: int) -> dict[str, float]:
    return fit(num_devices, count, tensors=True)


def fit_concrete(num_devices: int, count: int) -> dict[str, float]:
    """The same as a concrete function, which needs not look for the trace that fits the arguments."""
    setup(num_devices)
    xs, ys = quadratic_data()
    spec = tf.TensorSpec([ROWS, 1])
    concrete = tf.function(quadratic(num_devices)).get_concrete_function(spec, spec)

    def step(i):
        return concrete(tf.constant(xs[i % BATCHES]), tf.constant(ys[i % BATCHES])).numpy()

    return {"step": per_step(step, count=count)[0]}


def fit_direct(num_devices: int, count: int) -> dict[str, float]:
    """The same graph, called as one op: without what tf.function does in Python at every call."""
    setup(num_devices)
    xs, ys = quadratic_data()
    spec = tf.TensorSpec([ROWS, 1])
    concrete = tf.function(quadratic(num_devices)).get_concrete_function(spec, spec)
    captured, types = list(concrete.captured_inputs), [output.dtype for output in concrete.outputs]

    def step(i):
        arguments = [xs[i % BATCHES], ys[i % BATCHES], *captured]
        return tf.raw_ops.StatefulPartitionedCall(args=arguments, Tout=types, f=concrete)[0].numpy()

    return {"step": per_step(step, count=count)[0]}


def fit_many(num_devices: int, count: int) -> dict[str, float]:
    """The fit with many steps per call, each on a batch of its own."""
    setup(num_devices)
    xs, ys = quadratic_data()
    train = quadratic(num_devices)

    @tf.function
    def many(xs, ys):
        loss = tf.constant(0.0)
        for i in tf.range(BATCHES):
            loss = train(xs[i], ys[i])
        return loss

    return {"step": per_step(lambda i: many(xs, ys).numpy(), count=count, each=BATCHES)[0]}


def network():
    import keras

    keras.utils.set_random_seed(0)
    layers = keras.layers
    return keras.Sequential(
        [
            layers.Input((28, 28, 1)),
            layers.Conv2D(32, 5, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(64, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(256, activation="relu"),
            layers.Dense(10),
        ]
    )


def image_data():
    return RNG.normal(size=(IMAGES, 28, 28, 1)).astype("float32"), RNG.integers(0, 10, IMAGES)


def first_and_next(step: Callable[[], object], count: int) -> dict[str, float]:
    start = time.perf_counter()
    step()
    first = time.perf_counter() - start
    start = time.perf_counter()
    for _ in range(count):
        step()
    return {"first": first, "step": (time.perf_counter() - start) / count * 1e6}


def cnn(num_devices: int, count: int, *, backward: bool = True) -> dict[str, float]:
    """A Keras CNN through make_parallel, in one tf.function."""
    import keras

    import colonnade as cn

    setup(num_devices)
    x, y = image_data()
    model, optimizer = network(), keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)

    @tf.function
    def forward(x):
        return tf.reduce_sum(cn.make_parallel(model, num_devices, inputs=x))

    @tf.function
    def train(x, y):
        with tf.GradientTape() as tape:
            logits = cn.make_parallel(model, num_devices, inputs=x)
            loss = tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(y, logits, from_logits=True))
        variables = model.trainable_variables
        optimizer.apply(tape.gradient(loss, variables), variables)
        return loss

    return first_and_next(lambda: float(train(x, y) if backward else forward(x)), count)


def cnn_forward(num_devices: int, count: int) -> dict[str, float]:
    return cnn(num_devices, count, backward=False)


def mirrored(num_devices: int, count: int, *, backward: bool = True) -> dict[str, float]:
    """The same CNN under MirroredStrategy."""
    import keras

    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * num_devices)
    strategy = tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(num_devices)])
    with strategy.scope():
        model, optimizer = network(), keras.optimizers.Adam()
        optimizer.build(model.trainable_variables)
    batches = tf.data.Dataset.from_tensors(image_data()).repeat()
    iterator = iter(strategy.experimental_distribute_dataset(batches))

    def replica_forward(x, y):
        return tf.reduce_sum(model(x))

    def replica_train(x, y):
        with tf.GradientTape() as tape:
            losses = keras.losses.sparse_categorical_crossentropy(y, model(x), from_logits=True)
            loss = tf.reduce_sum(losses) / IMAGES
        variables = model.trainable_variables
        optimizer.apply(tape.gradient(loss, variables), variables)
        return loss

    replica = replica_train if backward else replica_forward

    @tf.function
    def step(iterator):
        return strategy.reduce("SUM", strategy.run(replica, args=next(iterator)), axis=None)

    return first_and_next(lambda: float(step(iterator)), count)


def mirrored_forward(num_devices: int, count: int) -> dict[str, float]:
    return mirrored(num_devices, count, backward=False)


CONTENDERS = {
    function.__name__: function
    for function in (
        sessions,
        fit,
        fit_tensors,
        fit_concrete,
        fit_direct,
        fit_many,
        cnn,
        cnn_forward,
        mirrored,
        mirrored_forward,
    )
}

if __name__ == "__main__":
    name, num_devices, count = sys.argv[1:]
    print(json.dumps(CONTENDERS[name](int(num_devices), int(count))))
