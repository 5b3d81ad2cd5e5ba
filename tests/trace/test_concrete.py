"""Functions of Colonnade's own, traced at once."""

import gc

import pytest
import tensorflow as tf

from colonnade.run.trace.concrete import concrete, undisturbed


def test_it_is_traced_at_once_and_only_once():
    traced = []
    function = concrete(lambda x: traced.append(x.shape) or 2 * x, tf.TensorSpec([3]))
    assert traced == [[3]]
    assert function(tf.ones(3)).numpy().tolist() == [2.0] * 3
    assert traced == [[3]]


def test_autograph_does_not_touch_it():
    def unrolled(x):
        for _ in range(3):  # AutoGraph would see to it as well, and that takes seconds
            x = x + 1
        if x.shape[0] == 2:
            x = -x
        return x

    ops = {op.type for op in concrete(unrolled, tf.TensorSpec([2])).graph.get_operations()}
    assert ops <= {"Placeholder", "Const", "AddV2", "Neg", "Identity", "NoOp"}
    with pytest.raises(tf.errors.OperatorNotAllowedInGraphError):
        concrete(lambda x: 1 if x > 0 else 2, tf.TensorSpec([]))


def test_python_looks_for_garbage_again_afterwards():
    assert gc.isenabled()
    with undisturbed():
        assert not gc.isenabled()
        with undisturbed():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()

    def wrong(x):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        concrete(wrong, tf.TensorSpec([]))
    assert gc.isenabled()


def test_who_has_switched_it_off_finds_it_off():
    gc.disable()
    try:
        with undisturbed():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
