"""Against the search that tries all cuts."""

import time
from itertools import combinations

import numpy as np
import pytest

from colonnade.describe.plan import spans
from colonnade.reason.schedules.balance import balanced, balanced_unequal
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


def test_thousands_of_layers_are_dealt_out_in_a_moment():
    """All sums that stages can have would be millions."""
    seconds = np.random.default_rng(1).uniform(1.0, 2.0, 3000).tolist()
    begin = time.process_time()
    cut = balanced(seconds, [0.0] * 3000, [0.0] * 3000, [1] * 8, None)
    assert time.process_time() - begin < 0.5
    assert max(sum(seconds[b:e]) for b, e in spans(cut, 8)) < sum(seconds) / 8 + 2.0


def test_every_stage_gets_a_layer():
    assert balanced([5.0, 0.0, 0.0], [0] * 3, [0] * 3, [1, 1, 1], None) == (0, 1, 2)


@pytest.mark.parametrize("seed", range(40))
def test_on_unequal_devices_as_good_as_trying_all_cuts(seed):
    rng = np.random.default_rng(seed)
    count = int(rng.integers(2, 8))
    stages = int(rng.integers(1, min(count, 4) + 1))
    seconds = rng.integers(1, 20, (stages, count)).astype(float)
    kept, left = rng.integers(0, 50, count), rng.integers(0, 50, count)
    alive = [stages - k for k in range(stages)]
    limits = [None if rng.random() < 0.3 else int(rng.integers(20, 300)) for _ in alive]

    def slowest(cut):
        longest = 0.0
        for k, (begin, end) in enumerate(spans(cut, stages)):
            need = kept[begin:end].sum() + alive[k] * left[begin:end].sum()
            if limits[k] is not None and need > limits[k]:
                return np.inf
            longest = max(longest, seconds[k][begin:end].sum())
        return longest

    every = [
        tuple(int(np.searchsorted(inner, i, side="right")) for i in range(count))
        for inner in combinations(range(1, count), stages - 1)
    ]
    found = balanced_unequal(seconds.tolist(), kept, left, alive, limits)
    least = min(map(slowest, every))
    assert (np.inf if found is None else slowest(found)) == least


def test_a_faster_device_takes_more_layers():
    seconds = [[3.0] * 6, [1.0] * 6]
    assert balanced_unequal(seconds, [0] * 6, [0] * 6, [1, 1], [None, None]).count(0) in (1, 2)
