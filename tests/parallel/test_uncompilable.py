import re

import keras
import numpy as np
import pytest
import tensorflow as tf

import colonnade as cn

X = np.ones([4, 2], "float32")
W = tf.Variable([1.0, 2.0])


def plain(x):
    return tf.reduce_sum(x * W, axis=1)


def prints(x):
    tf.print("x")
    return plain(x)


def seeded(x):
    return plain(x) * tf.random.uniform([], seed=3)


def sorts_words(x):
    words = tf.strings.as_string(x)
    return plain(x) * tf.strings.to_number(words)[:, 0]


def synchronised(norm=keras.layers.BatchNormalization(synchronized=True)):  # noqa: B008
    return lambda x: plain(norm(x, training=True))


def trained(loss, wanted, sync=None):
    trainer = cn.Trainer(loss, keras.optimizers.SGD(0.0), devices=2, compile=wanted, sync=sync)
    return trainer.fit((X,), batch_size=4, epochs=1, progress=False, prove=False)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("loss", "sync", "said"),
    [
        (prints, None, "prints, asserts or writes summaries"),
        (seeded, None, "draws seeded numbers"),
        (
            sorts_words,
            None,
            r"XLA cannot compile AsString.*test_uncompilable\.py:\d+: words = tf\.strings\.as_string",
        ),
        (synchronised(), None, "is synchronised, which cuts the function in pieces"),
        (plain, cn.Synchronous(shares="measured"), "reads the clock"),
    ],
    ids=["prints", "seeded", "strings", "synchronised", "measured"],
)
def test_one_error_that_names_the_cause_and_nothing_is_trained(loss, sync, said):
    with pytest.raises(cn.InvalidArgument) as refused:
        trained(loss, True, sync)
    (problem,) = refused.value.problems
    assert problem.argument == "compile"
    assert re.search(said, problem.rule)
    # Left to itself, Colonnade goes on without XLA, and says why.
    history = trained(loss, "auto", sync)
    assert len(history.losses) == 1
    assert history.compiled == f"not compiled by XLA: {problem.rule}"


def test_what_xla_can_compile_is_not_refused():
    assert trained(plain, True).compiled == "compiled by XLA, as asked for"
