"""Programs that are not the same on several devices, with what `cn.fit` says; and those that draw numbers."""

from functools import partial

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops
from keras_programs.own_steps import FLAT, LABELS, TARGET, Guide, dense
from keras_programs.plain_steps import IMAGES, compiled, stack


class Contracts(layers.Layer):
    """Meant example by example; `tensordot` takes the batch too."""

    def call(self, x):
        return x + tf.tensordot(x, x, 2)


def tensordot():
    return compiled(stack(layers.Dense(4), Contracts(), layers.Dense(2))), (FLAT, TARGET)


class Adds(layers.Layer):
    def call(self, x):
        self.add_loss(ops.sqrt(ops.mean(x**2)))
        return x


def added_root():
    return compiled(stack(layers.Dense(4), Adds(), layers.Dense(2))), (FLAT, TARGET)


class Contrastive(Guide):
    """Examples of a batch are compared with each other, in a step of its own."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            codes = ops.normalize(self(x, training=True), axis=1)
            likeness = ops.exp(codes @ ops.transpose(codes) / 0.5)
            same = ops.cast(y[:, None] == y[None, :], codes.dtype)
            loss = -ops.mean(ops.log(ops.sum(same * likeness, axis=1) / ops.sum(likeness, axis=1)))
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}


def contrastive():
    made = Contrastive()
    made.compile(keras.optimizers.SGD(0.1))
    return made, (FLAT, LABELS)


class SumStep(Guide):
    """Nobody sees that twice a sum is one."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = 2.0 * ops.sum((self(x, training=True) - y) ** 2)
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}


def sum_in_a_step():
    made = SumStep()
    made.compile(keras.optimizers.SGD(0.001))
    return made, (FLAT, TARGET)


class InBranch(Guide):
    """Applies gradients in a branch, where a trace cannot be cut."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = ops.mean((self(x, training=True) - y) ** 2)
        gradients = tape.gradient(loss, self.trainable_variables)
        variables = self.trainable_variables

        def apply():
            self.optimizer.apply([g + 0.0 for g in gradients], variables)
            return tf.constant(0)

        tf.cond(loss > 0, apply, lambda: tf.constant(0))
        return {"loss": loss}


def applied_in_a_branch():
    made = InBranch()
    made.compile(keras.optimizers.SGD(0.1))
    made.optimizer.build(made.trainable_variables)
    return made, (FLAT, TARGET)


class FixedSize(layers.Layer):
    """Knows how many examples a batch has, as a layer for a fixed number of tokens does."""

    def call(self, x):
        return ops.reshape(x, [8, 2, 3])[:, 0]


def fixed_batch_size():
    return compiled(stack(FixedSize(), layers.Dense(2))), (FLAT, TARGET)


class Codebook(layers.Layer):
    """Vectors that follow by moving sums what is nearest to them."""

    def build(self, shape):
        options = {"initializer": "random_uniform", "trainable": False}
        self.vectors = self.add_weight(shape=(5, shape[-1]), name="vectors", **options)
        self.sums = self.add_weight(shape=(5, shape[-1]), name="sums", **options)
        self.seen = self.add_weight(shape=(5,), name="seen", initializer="ones", trainable=False)

    def call(self, x, training=False):
        apart = ops.sum((x[:, None] - self.vectors[None]) ** 2, axis=-1)
        nearest = ops.one_hot(ops.argmin(apart, axis=1), 5, dtype=x.dtype)
        if training:
            self.seen.assign(0.9 * self.seen + 0.1 * ops.sum(nearest, axis=0))
            self.sums.assign(0.9 * self.sums + 0.1 * ops.matmul(ops.transpose(nearest), x))
            self.vectors.assign(self.sums / self.seen[:, None])
        return x + ops.stop_gradient(ops.matmul(nearest, self.vectors) - x)


def moving_sums():
    return compiled(stack(layers.Dense(4), Codebook(), layers.Dense(2))), (FLAT, TARGET)


class Queue(Guide):
    """Codes of earlier batches are kept, as in momentum contrast; the first loss does not show it."""

    def __init__(self):
        super().__init__()
        self.queue = tf.Variable(np.ones([20, 2]), trainable=False, name="queue")

    def train_step(self, data):
        x, _ = data
        with tf.GradientTape() as tape:
            codes = self(x, training=True)
            loss = ops.mean(ops.matmul(codes, ops.transpose(self.queue)) ** 2)
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        self.queue.assign(tf.concat([codes, self.queue], axis=0)[:20])
        return {"loss": loss}


def queue_of_codes():
    made = Queue()
    made.compile(keras.optimizers.SGD(0.1))
    return made, (FLAT, TARGET)


class Counts(Guide):
    """How many examples it has seen, of which a slice has only some."""

    def __init__(self, dtype):
        super().__init__()
        self.seen = self.add_weight(shape=(), dtype=dtype, initializer="zeros", trainable=False, name="seen")

    def train_step(self, data):
        logs = super().train_step(data)
        self.seen.assign_add(ops.cast(ops.shape(data[0])[0], self.seen.dtype))
        return logs


def counted_examples(dtype="int64"):
    made = Counts(dtype)
    made.compile(keras.optimizers.SGD(0.1), "mse")
    return made, (FLAT, TARGET)


class Largest(Guide):
    """Trains what one device does, and tells of more."""

    def train_step(self, data):
        logs = super().train_step(data)
        return {**logs, "largest": ops.max(ops.abs(self(data[0])))}


def largest_in_the_logs():
    made = Largest()
    made.compile(keras.optimizers.SGD(0.1), "mse")
    return made, (FLAT, TARGET)


# By name: the program, and what is said.
REFUSED = {
    "moving sums in a layer": (moving_sums, "vectors'.*what is no mean over the examples"),
    "queue of codes": (queue_of_codes, "variable='queue': is given what is no mean"),
    "tensordot over the batch": (
        tensordot,
        "model='sequential.*influence each other.*in the dataset",
    ),
    "add_loss of a root": (added_root, "add_loss='adds.*is neither a mean nor a sum.*compute_loss"),
    "contrastive loss in a train_step": (contrastive, "train_step='Contrastive'.*override compute_loss"),
    "sum in a train_step": (sum_in_a_step, "train_step='SumStep': is a sum over the examples"),
    "apply in a branch": (applied_in_a_branch, "inside a loop, a branch or a tf.function"),
    "examples counted in a train_step": (counted_examples, "seen': is given what is no mean"),
    "examples counted in a float": (partial(counted_examples, "float64"), "seen': is given what is no mean"),
    "a maximum in the logs": (largest_in_the_logs, r"log\['largest'\].*leave it out of the logs"),
    "fixed batch size": (fixed_batch_size, r"slice of 4.*refused\.py.*ops\.reshape"),
}


class Sampling(layers.Layer):
    def __init__(self):
        super().__init__()
        self.seed = keras.random.SeedGenerator(1)

    def call(self, mean, spread):
        return mean + ops.exp(0.5 * spread) * self.drawn(ops.shape(mean))

    def drawn(self, shape):
        return keras.random.normal(shape, seed=self.seed)


class VAE(keras.Model):
    def __init__(self):
        super().__init__()
        self.mean, self.spread, self.sampling, self.decoder = (
            layers.Dense(3),
            layers.Dense(3),
            Sampling(),
            dense(3, 6),
        )
        self.tracker = keras.metrics.Mean(name="loss")

    @property
    def metrics(self):
        return [self.tracker]

    def call(self, x):
        return self.decoder(self.mean(x))

    def train_step(self, x):
        with tf.GradientTape() as tape:
            mean, spread = self.mean(x), self.spread(x)
            again = self.decoder(self.sampling(mean, spread))
            errors = ops.mean(ops.sum((x - again) ** 2, axis=1))
            divergence = -0.5 * ops.mean(ops.sum(1 + spread - mean**2 - ops.exp(spread), axis=1))
            loss = errors + divergence
        self.optimizer.apply(tape.gradient(loss, self.trainable_weights), self.trainable_weights)
        self.tracker.update_state(loss)
        return {"loss": self.tracker.result()}


def vae():
    made = VAE()
    made.compile(keras.optimizers.Adam(0.01))
    return made, (tf.data.Dataset.from_tensor_slices(FLAT).batch(8),)


class GAN(keras.Model):
    """Draws its noise, and has batch normalisation and dropout."""

    def __init__(self, norm=layers.BatchNormalization, drop=0.3):
        super().__init__()
        self.generator = stack(
            layers.Dense(16), norm(), layers.Reshape([2, 2, 4]),
            layers.Conv2DTranspose(2, 4, 4, "same"), given=(4,),
        )  # fmt: skip
        self.critic = stack(
            layers.Conv2D(3, 3, 2, "same"), layers.LeakyReLU(), layers.Dropout(drop), layers.Flatten(),
            layers.Dense(1), given=(8, 8, 2),
        )  # fmt: skip
        self.seed = keras.random.SeedGenerator(2)
        self.loss_of = keras.losses.BinaryCrossentropy(from_logits=True)
        self.d_tracker, self.g_tracker = keras.metrics.Mean(name="d_loss"), keras.metrics.Mean(name="g_loss")

    @property
    def metrics(self):
        return [self.d_tracker, self.g_tracker]

    def compile(self, d_optimizer, g_optimizer):
        super().compile()
        self.d_optimizer, self.g_optimizer = d_optimizer, g_optimizer

    def drawn(self, shape):
        return keras.random.normal(shape, seed=self.seed)

    def train_step(self, real):
        rows = ops.shape(real)[0]
        noise = self.drawn((rows, 4))
        both = ops.concatenate([self.generator(noise), ops.cast(real, noise.dtype)], axis=0)
        labels = ops.concatenate([ops.ones((rows, 1)), ops.zeros((rows, 1))], axis=0)
        with tf.GradientTape() as tape:
            d_loss = self.loss_of(labels, self.critic(both, training=True))
        variables = self.critic.trainable_weights
        self.d_optimizer.apply_gradients(zip(tape.gradient(d_loss, variables), variables, strict=True))
        noise = self.drawn((rows, 4))
        with tf.GradientTape() as tape:
            fake = self.critic(self.generator(noise, training=True))
            g_loss = self.loss_of(ops.zeros((rows, 1)), fake)
        variables = self.generator.trainable_weights
        self.g_optimizer.apply_gradients(zip(tape.gradient(g_loss, variables), variables, strict=True))
        self.d_tracker.update_state(d_loss)
        self.g_tracker.update_state(g_loss)
        return {"d_loss": self.d_tracker.result(), "g_loss": self.g_tracker.result()}


def dcgan():
    made = GAN()
    made.compile(keras.optimizers.Adam(0.001), keras.optimizers.Adam(0.001))
    return made, (tf.data.Dataset.from_tensor_slices(IMAGES).batch(8),)


class Diffusion(keras.Model):
    """Draws times and noise; an average of the network is kept by hand."""

    def __init__(self):
        super().__init__()
        self.network, self.average = dense(7, 16, 6), dense(7, 16, 6)
        self.average.set_weights(self.network.get_weights())
        self.seed = keras.random.SeedGenerator(3)
        self.tracker = keras.metrics.Mean(name="noise_loss")

    @property
    def metrics(self):
        return [self.tracker]

    def drawn(self, shape):
        return keras.random.normal(shape, seed=self.seed)

    def train_step(self, x):
        rows = ops.shape(x)[0]
        x = ops.cast(x, keras.config.floatx())
        noise = self.drawn(ops.shape(x))
        time = ops.sigmoid(self.drawn((rows, 1)))
        noisy = ops.cos(time) * x + ops.sin(time) * noise
        with tf.GradientTape() as tape:
            found = self.network(ops.concatenate([noisy, time], axis=1), training=True)
            loss = ops.mean((noise - found) ** 2)
        variables = self.network.trainable_weights
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        self.tracker.update_state(loss)
        for average, weight in zip(self.average.weights, self.network.weights, strict=True):
            average.assign(0.99 * average + 0.01 * weight)
        return {"noise_loss": self.tracker.result()}


def ddpm():
    made = Diffusion()
    made.compile(keras.optimizers.AdamW(0.001))
    return made, (tf.data.Dataset.from_tensor_slices(FLAT).batch(8),)


class Flipped(keras.layers.Layer):
    """Turns signs at random, from a generator of the layer's own."""

    def __init__(self):
        super().__init__()
        self.seed = keras.random.SeedGenerator(11)

    def call(self, x):
        signs = 2 * keras.random.binomial(ops.shape(x), 1, 0.5, seed=self.seed, dtype=x.dtype) - 1
        return x * signs


def seeded_layer():
    """Outside of training too, so that there is nothing to compare."""
    made = keras.Sequential([keras.Input([6]), Flipped(), keras.layers.Dense(2)])
    made.compile(keras.optimizers.SGD(0.1), "mse")
    return made, (FLAT, FLAT[:, :2])


# What they draw is not what one device draws, so they are trained and not compared.
RANDOM = {"VAE": vae, "DCGAN": dcgan, "DDPM": ddpm, "a generator of a layer's own": seeded_layer}
