"""Optimizers that few use, and what Keras lets people say of one, in models and in steps of their own."""

from functools import partial

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops
from keras_programs.own_steps import FLAT, TARGET, Guide
from keras_programs.plain_steps import IDS, compiled, stack

RNG = np.random.default_rng(29)


def network(*, of_ids=False):
    first = [layers.Embedding(10, 6), layers.GlobalAveragePooling1D()] if of_ids else []
    inner = *first, layers.Dense(8, "tanh"), layers.LayerNormalization(), layers.Dense(2)
    return stack(*inner, given=(7,), dtype="int64") if of_ids else stack(*inner)


def trained_by(optimizer, *, of_ids=False):
    return compiled(network(of_ids=of_ids), optimizer=optimizer()), (IDS if of_ids else FLAT, TARGET)


def without_decay():
    """As for BERT: biases and norms do not decay, nor does one kernel."""
    made = network()
    optimizer = keras.optimizers.AdamW(0.05, weight_decay=0.3)
    optimizer.exclude_from_weight_decay([made.layers[-1].kernel], ["bias", "gamma", "beta"])
    return compiled(made, optimizer=optimizer), (FLAT, TARGET)


class Partly(keras.Model):
    """A layer of it is not used, so that its weights have no gradient."""

    def __init__(self):
        super().__init__()
        self.used, self.unused, self.answer = layers.Dense(4, "tanh"), layers.Dense(3), layers.Dense(2)

    def build(self, shape):
        self.used.build(shape)
        self.unused.build(shape)
        self.answer.build((None, 4))

    def call(self, x):
        return self.answer(self.used(x))


def one_for_each_part(model=network):
    rates = {".*kernel": keras.optimizers.Adam(0.01), ".*bias": keras.optimizers.SGD(0.1)}
    others = keras.optimizers.OptimizerMap(keras.optimizers.RMSprop(0.01), rates)
    return compiled(model(), optimizer=keras.optimizers.MultiOptimizer(others)), (FLAT, TARGET)


def unused_weights():
    return compiled(Partly(), optimizer=keras.optimizers.Adam(0.01, global_clipnorm=0.5)), (FLAT, TARGET)


class Scaled(Guide):
    """Scales its loss by hand."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
            scaled = self.optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        self.metrics[0].update_state(loss)
        return {"loss": self.metrics[0].result()}


def growing_scale():
    """Twice as large after every second step."""
    return keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01), 8.0, dynamic_growth_steps=2)


def in_a_step(optimizer, kind=Guide):
    made = kind()
    made.compile(optimizer(), "mse")
    return made, (FLAT, TARGET)


class Late(Guide):
    """Is built by its first batch."""

    def __init__(self):
        keras.Model.__init__(self)  # and not another net beside this one, which nobody trains
        self.net = keras.Sequential([layers.Dense(5, "tanh"), layers.Dense(2)])


class Signs(keras.optimizers.Optimizer):
    """One of somebody's own, with averages and counts in variables of its own."""

    def build(self, variables):
        if self.built:
            return
        super().build(variables)
        self.averages = self.add_optimizer_variables(variables, "average")
        self.turns = self.add_variable((), name="turns", dtype="int32", initializer="zeros")

    def update_step(self, gradient, variable, learning_rate):
        average = self.averages[self._get_variable_index(variable)]
        gradient = ops.convert_to_tensor(gradient)
        turned = ops.sum(ops.cast(ops.sign(gradient) != ops.sign(average), "int32"))
        self.assign_add(self.turns, turned)
        self.assign(average, 0.9 * average + 0.1 * gradient)
        rate = ops.cast(learning_rate, variable.dtype)
        self.assign_sub(variable, rate * (gradient + 0.1 * ops.tanh(average)))


class Warming(keras.optimizers.schedules.LearningRateSchedule):
    """Of a transformer: rises, and falls with the root of the step."""

    def __call__(self, step):
        step = ops.cast(step, keras.config.floatx()) + 1
        return 0.05 * ops.minimum(ops.rsqrt(step), step * 2**-1.5)


def averages_of_many():
    return keras.optimizers.AdamW(
        0.05, use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=2, clipnorm=0.3, weight_decay=0.1,
        gradient_accumulation_steps=3,
    )  # fmt: skip


# By name; each trains dense layers, and those that have to do with rows of tables an embedding.
OPTIMIZERS = {
    "Muon": partial(keras.optimizers.Muon, 0.01, exclude_layers=["dense_1"], adam_weight_decay=0.1),
    "schedule-free": partial(keras.optimizers.ScheduleFreeAdamW, 0.01, warmup_steps=2, weight_decay=0.1),
    "Adadelta": partial(keras.optimizers.Adadelta, 1.0),
    "Adamax": partial(keras.optimizers.Adamax, 0.01),
    "centered RMSprop": partial(keras.optimizers.RMSprop, 0.01, momentum=0.5, centered=True),
    "AMSGrad": partial(keras.optimizers.Adam, 0.01, amsgrad=True, clipvalue=0.01),
    "averages, clipping and accumulation": averages_of_many,
    "one of somebody's own": partial(Signs, 0.05, weight_decay=0.1),
    "a schedule of somebody's own": lambda: keras.optimizers.SGD(Warming(), momentum=0.9, nesterov=True),
    "a rate that is a function": lambda: keras.optimizers.SGD(lambda: 0.05),
    "a growing loss scale": growing_scale,
}
OF_TABLES = {
    "Nesterov of a table": partial(
        keras.optimizers.SGD, 0.1, momentum=0.9, nesterov=True, global_clipnorm=0.1
    ),
    "a growing loss scale of a table": growing_scale,
    "Muon of a table": partial(keras.optimizers.Muon, 0.01),
    "Adafactor of a table": partial(keras.optimizers.Adafactor, 0.01),
}
EQUAL = {
    **{name: partial(trained_by, optimizer) for name, optimizer in OPTIMIZERS.items()},
    **{name: partial(trained_by, optimizer, of_ids=True) for name, optimizer in OF_TABLES.items()},
    "weights that do not decay": without_decay,
    "an optimizer for each part": one_for_each_part,
    "an optimizer for each part, of which one is unused": partial(one_for_each_part, Partly),
    "unused weights": unused_weights,
    "a loss that is scaled in a step": partial(in_a_step, growing_scale, Scaled),
    "schedule-free in a step": partial(in_a_step, OPTIMIZERS["schedule-free"]),
    "schedule-free in a step that is built late": partial(in_a_step, OPTIMIZERS["schedule-free"], Late),
    "Muon in a step": partial(in_a_step, OPTIMIZERS["Muon"]),
    "one of somebody's own in a step": partial(in_a_step, OPTIMIZERS["one of somebody's own"]),
    "an optimizer for each part in a step": lambda: in_a_step(
        lambda: one_for_each_part()[0].optimizer,
    ),
}
