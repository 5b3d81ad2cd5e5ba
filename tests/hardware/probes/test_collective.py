import numpy as np

from colonnade.hardware.probes import collective


def test_every_number_that_a_collective_adds_is_exact():
    total = np.sum([np.abs(collective.numbers(i, 10_000)) for i in range(64)], axis=0)
    assert total.max() < 2**24
    assert np.array_equal(collective.numbers(1, 50), np.round(collective.numbers(1, 50)))
