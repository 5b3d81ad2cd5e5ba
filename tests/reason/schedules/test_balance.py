"""Against the search that tries all cuts."""

import numpy as np
import pytest

from colonnade.describe.plan import spans
from colonnade.reason.schedules.balance import balanced
from colonnade.reason.schedules.layer_split import Layer, Room, place


@pytest.mark.parametrize("seed", range(60))
def test_as_good_as_trying_all_cuts(seed):
    rng = np.random.default_rng(seed)
    count = int(rng.integers(2, 10))
    stages = int(rng.integers(1, min(count, 4) + 1))
    seconds = rng.integers(1, 20, count).astype(float)
    kept, left = rng.integers(0, 50, count), rng.integers(0, 50, count)
    alive = [stages - k for k in range(stages)]
    limit = None if seed % 2 else int(rng.integers(20, 300))
    layers = [
        Layer(str(i), s, int(k), int(a)) for i, (s, k, a) in enumerate(zip(seconds, kept, left, strict=True))
    ]
    exact = place(layers, [Room("CPU:0", limit, number) for number in alive])
    quick = balanced(seconds, kept, left, alive, limit)
    if exact is None:
        assert quick is None
        return

    def slowest(cut):
        return max(seconds[b:e].sum() for b, e in spans(cut, stages))

    assert quick is not None
    assert slowest(quick) == slowest(exact)
    for k, (begin, end) in enumerate(spans(quick, stages)):
        assert limit is None or (kept[begin:end].sum() + alive[k] * left[begin:end].sum()) <= limit


def test_every_stage_gets_a_layer():
    assert balanced([5.0, 0.0, 0.0], [0] * 3, [0] * 3, [1, 1, 1], None) == (0, 1, 2)
