"""Steps of several networks: image to image, cycles, codebooks, momentum encoders; layers with averages."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops
from keras_programs.plain_steps import compiled, stack

RNG = np.random.default_rng(9)
ONE, OTHER = RNG.normal(size=(24, 6)), RNG.normal(size=(24, 6))
SMALL, SHARP = RNG.normal(size=(24, 8, 8, 2)), RNG.normal(size=(24, 8, 8, 2))


def pairs(one, other):
    return (tf.data.Dataset.from_tensor_slices((one, other)).batch(10),)


class Cycles(keras.Model):
    """Two generators and two critics, each with an optimizer, from one persistent tape."""

    def __init__(self):
        super().__init__()
        self.there, self.back = (stack(layers.Dense(8, "tanh"), layers.Dense(6)) for _ in range(2))
        self.critic, self.other = (stack(layers.Dense(8, "leaky_relu"), layers.Dense(1)) for _ in range(2))
        self.optimizers = [keras.optimizers.Adam(0.002, beta_1=0.5) for _ in range(4)]

    def train_step(self, data):
        x, y = data
        square, absolute = keras.losses.MeanSquaredError(), keras.losses.MeanAbsoluteError()
        with tf.GradientTape(persistent=True) as tape:
            made, found = self.there(x, training=True), self.back(y, training=True)
            seen, faked = self.other(y), self.other(made)
            seen_back, faked_back = self.critic(x), self.critic(found)
            there = square(ops.ones_like(faked), faked) + 10 * absolute(y, self.there(found, training=True))
            back = square(ops.ones_like(faked_back), faked_back) + 10 * absolute(x, self.back(made))
            one = square(ops.ones_like(seen_back), seen_back) + square(ops.zeros_like(faked_back), faked_back)
            two = square(ops.ones_like(seen), seen) + square(ops.zeros_like(faked), faked)
        networks = self.there, self.back, self.critic, self.other
        for optimizer, net, loss in zip(self.optimizers, networks, (there, back, one, two), strict=True):
            gradients = tape.gradient(loss, net.trainable_variables)
            optimizer.apply_gradients(zip(gradients, net.trainable_variables, strict=True))
        return {"there": there, "back": back, "one": one, "two": two}


def cycles():
    made = Cycles()
    made.compile()
    return made, pairs(ONE, OTHER)


class ImageToImage(keras.Model):
    """A generator and a critic of pairs; what the critic's bias is given cancels."""

    def __init__(self):
        super().__init__()
        given = keras.Input([8, 8, 2])
        down = layers.Conv2D(4, 4, 2, "same", activation="leaky_relu")(given)
        up = layers.Conv2DTranspose(2, 4, 2, "same", activation="tanh")(down)
        self.generator = keras.Model(given, up)
        both = [keras.Input([8, 8, 2]), keras.Input([8, 8, 2])]
        self.critic = keras.Model(both, layers.Conv2D(1, 4)(layers.Concatenate()(both)))
        self.first, self.second = keras.optimizers.Adam(2e-4, 0.5), keras.optimizers.Adam(2e-4, 0.5)

    def train_step(self, data):
        x, y = data
        crossentropy = keras.losses.BinaryCrossentropy(from_logits=True)
        with tf.GradientTape() as made_tape, tf.GradientTape() as seen_tape:
            made = self.generator(x, training=True)
            real, fake = self.critic([x, y], training=True), self.critic([x, made], training=True)
            near = tf.reduce_mean(tf.abs(y - made))
            wanted = crossentropy(tf.ones_like(fake), fake) + 100 * near
            told = crossentropy(tf.ones_like(real), real) + crossentropy(tf.zeros_like(fake), fake)
        variables = self.generator.trainable_variables
        self.first.apply(made_tape.gradient(wanted, variables), variables)
        variables = self.critic.trainable_variables
        self.second.apply(seen_tape.gradient(told, variables), variables)
        return {"wanted": wanted, "near": near, "told": told}


def image_to_image():
    made = ImageToImage()
    made.compile()
    return made, pairs(SMALL, SHARP)


class Nearest(layers.Layer):
    """Vectors that are trained; the gradient goes straight through."""

    def build(self, shape):
        self.vectors = self.add_weight(shape=(shape[-1], 8), initializer="random_uniform", name="vectors")

    def call(self, x):
        flat = ops.reshape(x, [-1, x.shape[-1]])
        apart = ops.sum(self.vectors**2, axis=0) - 2 * ops.matmul(flat, self.vectors)
        chosen = ops.one_hot(ops.argmin(apart, axis=1), 8, dtype=x.dtype)
        near = ops.reshape(ops.matmul(chosen, ops.transpose(self.vectors)), ops.shape(x))
        kept, moved = ops.stop_gradient(near) - x, near - ops.stop_gradient(x)
        self.add_loss(0.25 * ops.mean(kept**2) + ops.mean(moved**2))
        return x + ops.stop_gradient(near - x)


class QuantisedStep(keras.Model):
    def __init__(self):
        super().__init__()
        inner = layers.Conv2D(4, 3, 2, "same"), Nearest(), layers.Conv2DTranspose(2, 3, 2, "same")
        self.net, self.tracker = stack(*inner, given=(8, 8, 2)), keras.metrics.Mean("loss")

    @property
    def metrics(self):
        return [self.tracker]

    def train_step(self, x):
        with tf.GradientTape() as tape:
            loss = ops.mean((x - self.net(x)) ** 2) / 0.3 + sum(self.net.losses)
        variables = self.net.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        self.tracker.update_state(loss)
        return {"loss": self.tracker.result()}


def quantised():
    made = QuantisedStep()
    made.compile(keras.optimizers.Adam(0.01))
    return made, (SMALL,)


class Momentum(keras.Model):
    """Predicts what a network says whose weights follow its own."""

    def __init__(self):
        super().__init__()
        self.online, self.target = (stack(layers.Dense(8, "relu"), layers.Dense(4)) for _ in range(2))
        self.predictor = stack(layers.Dense(4), given=(4,))
        self.target.set_weights(self.online.get_weights())

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = 0.0
            for one, other in (data, data[::-1]):
                said = tf.math.l2_normalize(self.predictor(self.online(one, training=True)), axis=1)
                wanted = tf.math.l2_normalize(tf.stop_gradient(self.target(other)), axis=1)
                loss += tf.reduce_mean(2 - 2 * tf.reduce_sum(said * wanted, axis=1))
        variables = self.online.trainable_variables + self.predictor.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        for own, followed in zip(self.target.weights, self.online.weights, strict=True):
            own.assign(0.9 * own + 0.1 * followed)
        return {"loss": loss}


def momentum_encoder():
    made = Momentum()
    made.compile(keras.optimizers.Adam(0.01))
    return made, pairs(ONE, OTHER)


class Centred(layers.Layer):
    """Takes away a moving mean, which is that of the whole batch where slices differ in size too."""

    def build(self, shape):
        self.mean = self.add_weight(shape=shape[-1:], initializer="zeros", trainable=False, name="mean")

    def call(self, x, training=False):
        centred = x - self.mean
        if training:
            self.mean.assign(0.9 * self.mean + 0.1 * ops.mean(x, axis=0))
        return centred


def moving_mean():
    return compiled(stack(layers.Dense(4), Centred(), layers.Dense(2))), (ONE, OTHER[:, :2])


def outputs_with_validation():
    given = keras.Input([6])
    made = keras.Model(given, {name: layers.Dense(2, name=name)(given) for name in ("one", "two")})
    losses, weights = {"one": "mse", "two": "mae"}, {"one": 0.3, "two": 2.0}
    compiled(made, losses, loss_weights=weights, metrics={"one": ["mae"]})
    targets = {"one": OTHER[:, :2], "two": OTHER[:, 2:4]}
    return made, (ONE, targets), {"validation_data": (ONE[:13], {k: v[:13] for k, v in targets.items()})}


EQUAL = {
    "cycles of two generators": cycles,
    "image to image": image_to_image,
    "codebook in a train_step": quantised,
    "momentum encoder": momentum_encoder,
    "moving mean in a layer": moving_mean,
    "validation of several outputs": outputs_with_validation,
}
