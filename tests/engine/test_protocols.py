"""What a trainer asks of a way of training before anything is made: `sync=` and `variables=` together."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import colonnade as cn

SYNCS = {
    "synchronous": (cn.Synchronous(), ("shared", "mirrored", "partitioned")),
    "asynchronous": (cn.Asynchronous(), ("shared",)),
    "local": (cn.LocalSGD(2), ("mirrored",)),
    "elastic": (cn.Elastic(2, 0.1), ("mirrored",)),
}


def trainer(**options):
    w = tf.Variable(1.0, name="w")
    return cn.Trainer(lambda x: w * x, keras.optimizers.SGD(0.1), **{"devices": 2, **options})


@pytest.mark.parametrize("name", SYNCS)
@pytest.mark.parametrize("home", ["shared", "mirrored", "partitioned"])
def test_homes_that_a_way_of_training_does_not_have_are_refused(name, home):
    sync, homes = SYNCS[name]
    if home in homes:
        trainer(sync=sync, variables=home)
        return
    with pytest.raises(cn.InvalidArgument) as caught:
        trainer(sync=sync, variables=home)
    (problem,) = caught.value.problems
    assert problem.argument == "variables"
    assert f"has no meaning with {type(sync).__name__}, whose variables are {' or '.join(homes)}" in str(
        problem
    )


@pytest.mark.parametrize("name", SYNCS)
def test_auto_is_a_home_that_the_way_of_training_has(name):
    """Where nothing is asked for, every way of training finds its own."""
    sync, _ = SYNCS[name]
    one = trainer(sync=sync)
    one.train_on_batch(np.ones(4, "float32"))
    assert one.step == 1


@pytest.mark.parametrize("sync", ["synchronous", cn.LocalSGD, 3])
def test_what_is_no_way_of_training_is_refused_with_all_else_that_is_wrong(sync):
    with pytest.raises(cn.InvalidArgument) as caught:
        trainer(sync=sync, variables="everywhere")
    assert [problem.argument for problem in caught.value.problems] == ["variables", "sync"]
    assert "must be a value such as cn.Synchronous()" in str(caught.value)


@pytest.mark.parametrize("every", [0, -1, 2.0, True, "2", None])
def test_what_is_no_whole_number_is_refused(every):
    with pytest.raises(cn.InvalidArgument, match=r"every=.*must be a whole number from 1 up"):
        cn.LocalSGD(every)


def test_a_whole_number_of_numpy_is_one():
    assert cn.LocalSGD(np.int32(3)).every == 3
