"""What a user sets of local training: what cannot be, and what is taken as it is meant."""

import keras
import numpy as np
import pytest
from numpy_local import linear, trained

import colonnade as cn


class Unregistered(keras.optimizers.schedules.ExponentialDecay):
    pass


def excluding():
    outer = keras.optimizers.AdamW()
    outer.exclude_from_weight_decay(var_names=["bias"])
    return outer


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: cn.LocalSGD(2, outer=excluding()), "does not tell of exclude_from_weight_decay"),
        (
            lambda: cn.LocalSGD(2, outer=keras.optimizers.SGD(Unregistered(0.1, 1, 0.5))),
            "Could not locate class 'Unregistered'",
        ),
        (lambda: cn.LocalSGD(0), "every=0: must be a whole number from 1 up"),
        (lambda: cn.LocalSGD(2, outer="sgd"), "outer='sgd': must be a Keras 3 optimizer"),
        (lambda: cn.DiLoCo(every=1.5), "every=1.5"),
        (lambda: cn.Elastic(True, 2), "alpha=2: must be a number from 0 to below 1"),
        (lambda: linear(cn.Elastic(2, 0.5), devices=4), "never settle. Try alpha=0.23"),
        (lambda: linear(cn.LocalSGD(2), variables="shared"), "has no meaning with LocalSGD"),
        (lambda: linear(cn.Elastic(2, 0.1), variables="partitioned"), "has no meaning with Elastic"),
        (lambda: linear(cn.LocalSGD), "must be a value such as"),
    ],
)
def test_bad_settings(make, says):
    with pytest.raises(cn.InvalidArgument) as caught:
        make()
    assert says in str(caught.value)


@pytest.mark.long
def test_numbers_of_numpy_are_numbers():
    local, _ = trained(cn.LocalSGD(np.int64(2)), 4)
    assert np.array_equal(local, trained(cn.LocalSGD(2), 4)[0])
    elastic, _ = trained(cn.Elastic(2, np.float32(0.25)), 4)
    assert np.array_equal(elastic, trained(cn.Elastic(2, 0.25), 4)[0])


@pytest.mark.long
def test_an_outer_optimizer_is_not_shared_between_trainers():
    sync = cn.LocalSGD(2, outer=keras.optimizers.SGD(1.0, momentum=0.9))
    first, _ = trained(sync, 6)
    second, _ = trained(sync, 6)
    np.testing.assert_array_equal(first, second)
    assert not sync.outer.built
