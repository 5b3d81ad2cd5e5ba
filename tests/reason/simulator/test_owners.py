import numpy as np
import pytest

from colonnade.reason.simulator.owners import dealt


@pytest.mark.parametrize("seed", range(20))
def test_variables_are_dealt_as_the_engine_deals_them(seed):
    from colonnade.run.variables import homes

    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 50, int(rng.integers(1, 40))).tolist()
    count = int(rng.integers(1, 9))
    assert dealt(sizes, count) == homes.dealt(sizes, count)


def test_the_largest_variable_is_not_divided():
    assert dealt([100, 1, 1, 1], 4) == [0, 1, 2, 3]
