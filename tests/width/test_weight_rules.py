"""Regularisers, constraints and optimizers that look at whole weights."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import colonnade as cn


def ruled(dense, split, **rules):
    """A layer with rules for its weights, and one behind it."""
    keras.utils.set_random_seed(1)
    options = {} if dense is keras.layers.Dense else {"split": split, "devices": 3}
    return keras.Sequential([keras.Input([7]), dense(8, "tanh", **rules, **options), keras.layers.Dense(2)])


@pytest.mark.sampled(2)
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
