"""Steps of their own that derive by inputs, train layers one by one, or call what is deprecated."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops
from keras_programs.own_steps import FLAT, LABELS, TARGET, Guide, dense
from keras_programs.plain_steps import stack

RNG = np.random.default_rng(41)
PLACES = RNG.uniform(-1, 1, (24, 2))


class Physics(keras.Model):
    """A network that satisfies a heat equation: second derivatives by its inputs."""

    def __init__(self):
        super().__init__()
        self.net = dense(2, 8, 8, 1)
        self.rate = self.add_weight(shape=(), initializer="ones", name="rate")

    def call(self, x):
        return self.net(x)

    def residual(self, x):
        place, time = ops.split(x, 2, axis=1)
        with tf.GradientTape() as outer:
            outer.watch(place)
            with tf.GradientTape(persistent=True) as tape:
                tape.watch([place, time])
                found = self.net(ops.concatenate([place, time], axis=1))
            by_place, by_time = tape.gradient(found, place), tape.gradient(found, time)
        return by_time - self.rate * outer.gradient(by_place, place)


class PhysicsByLoss(Physics):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return ops.mean(ops.square(y - y_pred)) + ops.mean(ops.square(self.residual(x)))


class PhysicsByStep(Physics):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            of_data = ops.mean(ops.square(y - self(x, training=True)))
            of_law = ops.mean(ops.square(self.residual(x)))
            loss = of_data + of_law
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"loss": loss, "data": of_data, "law": of_law}


def physics(kind):
    made = kind()
    made.compile(keras.optimizers.Adam(0.01))
    return made, (PLACES, np.sin(PLACES[:, :1]))


class Jacobian(PhysicsByStep):
    def residual(self, x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            found = self.net(x)
        return ops.sum(tape.batch_jacobian(found, x), axis=(1, 2))


class Forwards(layers.Layer):
    """A layer that is trained by itself."""

    def __init__(self, units):
        super().__init__()
        self.dense, self.by = layers.Dense(units, "relu"), keras.optimizers.Adam(0.01)
        self.tracker = keras.metrics.Mean()

    def call(self, x):
        return self.dense(x / (ops.norm(x, axis=1, keepdims=True) + 1e-4))

    def trained(self, good, bad):
        with tf.GradientTape() as tape:
            one, other = (ops.mean(ops.square(self(x)), axis=1) for x in (good, bad))
            loss = ops.mean(ops.log(1 + ops.exp(ops.concatenate([1.5 - one, other - 1.5], axis=0))))
        weights = self.dense.trainable_weights
        self.by.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        self.tracker.update_state(loss)
        return ops.stop_gradient(self(good)), ops.stop_gradient(self(bad)), self.tracker.result()


class ForwardForward(keras.Model):
    def __init__(self):
        super().__init__()
        self.blocks = [Forwards(5), Forwards(4)]

    def call(self, x):
        for block in self.blocks:
            x = block(x)
        return x

    @tf.function
    def train_step(self, data):
        x, y = data
        good = ops.concatenate([x, ops.one_hot(y, 3, dtype=x.dtype)], axis=1)
        bad = ops.concatenate([x, ops.one_hot((y + 1) % 3, 3, dtype=x.dtype)], axis=1)
        total = 0.0
        for block in self.blocks:
            good, bad, loss = block.trained(good, bad)
            total += loss
        return {"loss": total / len(self.blocks)}


def forward_forward():
    made = ForwardForward()
    made.compile()
    return made, (FLAT, LABELS)


class Deprecated(Guide):
    """As before Keras 3."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            found = self(x, training=True)
            loss = self.compiled_loss(y, found, regularization_losses=self.losses)
        self.optimizer.apply_gradients(
            zip(tape.gradient(loss, self.trainable_variables), self.trainable_variables, strict=True)
        )
        self.compiled_metrics.update_state(y, found)
        return {m.name: m.result() for m in self.metrics}


def deprecated():
    made = Deprecated()
    made.compile("adam", "mse", metrics=[keras.metrics.MeanSquaredError()])
    return made, (FLAT, TARGET)


class Noisy(keras.Model):
    """As diffusion: normalises, keeps an average network, and tests that one; times and noise are data."""

    def __init__(self):
        super().__init__()
        self.normal = layers.Normalization()
        self.net, self.average = dense(7, 12, 6), dense(7, 12, 6)
        self.average.set_weights(self.net.get_weights())

    def compile(self, **options):
        super().compile(**options)
        self.noise_loss, self.image_loss = (
            keras.metrics.Mean(name="n_loss"),
            keras.metrics.Mean(name="i_loss"),
        )

    @property
    def metrics(self):
        return [self.noise_loss, self.image_loss]

    def shown(self, net, x, noise, time, training):
        x = self.normal(x)
        angle = 0.2 + time
        noisy = ops.cos(angle) * x + ops.sin(angle) * noise
        found = net(ops.concatenate([noisy, time**2], axis=1), training=training)
        return self.loss(noise, found), self.loss(x, (noisy - ops.sin(angle) * found) / ops.cos(angle))

    def train_step(self, data):
        with tf.GradientTape() as tape:
            noise_loss, image_loss = self.shown(self.net, *data, True)
        gradients = tape.gradient(noise_loss, self.net.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.net.trainable_weights, strict=True))
        self.noise_loss.update_state(noise_loss)
        self.image_loss.update_state(image_loss)
        for weight, average in zip(self.net.weights, self.average.weights, strict=True):
            average.assign(0.9 * average + 0.1 * weight)
        return {m.name: m.result() for m in self.metrics[:-1]}

    def test_step(self, data):
        noise_loss, image_loss = self.shown(self.average, *data, False)
        self.noise_loss.update_state(noise_loss)
        self.image_loss.update_state(image_loss)
        return {m.name: m.result() for m in self.metrics}


class NoisyMeans(Noisy):
    """Of means; of a loss per example a tape gives the gradient of their sum."""

    def shown(self, *given):
        return [ops.mean(each) for each in super().shown(*given)]


def noisy(kind=NoisyMeans):
    made = kind()
    made.normal.adapt(FLAT)
    made.compile(
        optimizer=keras.optimizers.AdamW(0.01, weight_decay=1e-4), loss=keras.losses.mean_absolute_error
    )
    rng = np.random.default_rng(2)
    data = FLAT, rng.normal(size=(24, 6)), rng.uniform(size=(24, 1))
    every = tf.data.Dataset.from_tensor_slices(data).batch(10)
    return made, (every,), {"validation_data": every}


class Distiller(keras.Model):
    """The guide's: `compute_loss` asks a teacher, and `compile` and `call` are its own."""

    def __init__(self):
        super().__init__()
        self.teacher = stack(layers.Dense(8, "relu"), layers.BatchNormalization(), layers.Dense(3))
        self.student = dense(6, 4, 3)

    def compile(self, optimizer, metrics, student_loss, distillation_loss, alpha=0.1, temperature=3):
        super().compile(optimizer=optimizer, metrics=metrics)
        self.student_loss, self.distillation_loss = student_loss, distillation_loss
        self.alpha, self.temperature = alpha, temperature

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, allow_empty=False):
        teacher = self.teacher(x, training=False)
        hard = self.student_loss(y, y_pred)
        soft = self.distillation_loss(
            ops.softmax(teacher / self.temperature, axis=1), ops.softmax(y_pred / self.temperature, axis=1)
        )
        return self.alpha * hard + (1 - self.alpha) * soft * self.temperature**2

    def call(self, x):
        return self.student(x)


def distiller():
    made = Distiller()
    made.teacher.trainable = False
    made.compile(
        keras.optimizers.Adam(0.01), [keras.metrics.SparseCategoricalAccuracy()],
        keras.losses.SparseCategoricalCrossentropy(from_logits=True), keras.losses.KLDivergence(),
    )  # fmt: skip
    return made, (FLAT, LABELS), {"validation_data": (FLAT[:7], LABELS[:7])}


EQUAL = {
    "physics in compute_loss": lambda: physics(PhysicsByLoss),
    "physics in a train_step": lambda: physics(PhysicsByStep),
    "a Jacobian in a train_step": lambda: physics(Jacobian),
    "layers that are trained one by one": forward_forward,
    "compiled_loss and compiled_metrics": deprecated,
    "diffusion with an average network that is tested": noisy,
    "diffusion with a loss for each example": lambda: noisy(Noisy),
    "a distiller by compute_loss": distiller,
}
