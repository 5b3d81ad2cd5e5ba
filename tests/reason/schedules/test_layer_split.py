from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from colonnade.reason.schedules.layer_split import MIB, Layer, Room, least_limit, misfits, place, rooms_of
from colonnade.reason.schedules.schedule import SCHEDULES


def every_cut(num_layers, num_stages):
    for inner in combinations(range(1, num_layers), num_stages - 1):
        bounds = (0, *inner, num_layers)
        yield tuple(k for k in range(num_stages) for _ in range(bounds[k], bounds[k + 1]))


def parts(layers, cut, num_stages):
    return [
        [layer for layer, stage in zip(layers, cut, strict=True) if stage == k] for k in range(num_stages)
    ]


@st.composite
def tasks(draw):
    n = draw(st.integers(1, 7))
    stages = draw(st.integers(1, n))
    number = st.integers(0, 9)
    layers = [Layer(str(i), *(draw(number) for _ in range(4))) for i in range(n)]
    rooms = [
        Room(str(k), draw(st.none() | st.integers(5, 40)), draw(st.integers(1, 3))) for k in range(stages)
    ]
    return layers, rooms


@settings(max_examples=150, deadline=None)
@given(tasks())
def test_no_cut_is_better(task):
    layers, rooms = task
    fitting = {}
    for cut in every_cut(len(layers), len(rooms)):
        stages = parts(layers, cut, len(rooms))
        if all(room.fits(part) for room, part in zip(rooms, stages, strict=True)):
            fitting[cut] = max(sum(layer.seconds for layer in part) for part in stages)
    found = place(layers, rooms)
    if found is None:
        assert not fitting
    else:
        assert fitting[found] == min(fitting.values())


@settings(max_examples=80, deadline=None)
@given(tasks())
def test_least_limit_fits_and_less_does_not(task):
    layers, rooms = task
    limit = least_limit(layers, rooms)

    def with_limit(size):
        return [Room(room.device, size, room.alive) for room in rooms]

    assert place(layers, with_limit(limit)) is not None
    assert limit == 0 or place(layers, with_limit(limit - 1)) is None


def test_what_fits_nowhere_is_told_with_numbers_and_a_way_out():
    layers = [Layer(name, 1.0, kept=3 * MIB, activations=MIB) for name in ("a", "b", "c")]
    rooms = [Room("CPU:0", 7 * MIB, alive=2), Room("CPU:1", 7 * MIB)]
    assert place(layers, rooms) is None
    said = "\n".join(map(str, misfits(layers, rooms, SCHEDULES["1f1b"], 4)))
    assert "layer='a': needs 3.0 MiB, 1.0 MiB per micro-batch and 0.0 MiB at work (an estimate); fits" in said
    assert "CPU:0 7.0 MiB, CPU:1 7.0 MiB" in said
    assert "raise the limit to 8 MiB on each device, or take 3 devices, or micro_batches=8." in said


def said_of(layers, limit, num_devices, schedule="1f1b"):
    """The advice, where all devices have one limit."""
    kind = SCHEDULES[schedule]
    rooms = rooms_of([f"CPU:{i}" for i in range(num_devices)], [limit] * num_devices, kind, 8)
    assert place(layers, rooms) is None
    return list(misfits(layers, rooms, kind, 8))[-1].fix


def test_more_devices_are_advised_only_if_they_help():
    """More stages keep more micro-batches alive, so the first of them has more to hold."""
    layers = [Layer(name, 1.0, activations=10 * MIB) for name in "abcd"]
    advice = said_of(layers, 25 * MIB, 2)
    assert "take" not in advice
    assert 'schedule="sequential"' in advice
    assert "micro_batches=16" in advice


def test_advice_is_what_fits():
    layers = [Layer("a", 1.0, kept=int(10.04 * MIB)), Layer("b", 1.0, kept=int(10.04 * MIB))]
    advice = said_of(layers, 8 * MIB, 2)
    assert advice == "To make it fit: raise the limit to 11 MiB on each device"
    assert place(layers, [Room("x", 11 * MIB)] * 2) == (0, 1)
    layers = [Layer(name, 1.0, activations=4 * MIB) for name in "ab"]
    gpipe = said_of(layers, 20 * MIB, 2, "gpipe")
    assert 'schedule="1f1b"' in gpipe
    assert "micro_batches" not in gpipe  # all of them stay, however small


def test_the_article_s_six_layers_on_six_devices():
    layers = [Layer(f"lstm {i}", 1.0) for i in range(6)]
    assert place(layers, [Room(f"CPU:{i}") for i in range(6)]) == (0, 1, 2, 3, 4, 5)


@pytest.mark.parametrize("stages", [1, 2, 3])
def test_equal_layers_are_dealt_evenly(stages):
    found = place([Layer(str(i), 1.0) for i in range(6)], [Room(str(k)) for k in range(stages)])
    assert [found.count(k) for k in range(stages)] == [6 // stages] * stages
