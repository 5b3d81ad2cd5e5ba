from workloads import cards, drawn, timed, virtual

from colonnade.describe.workload import Workload
from colonnade.reason.planning.layouts import axes, counts, dealt, variants


def test_counts_have_all_devices_and_one():
    for number in (1, 5, 8, 12, 20, 1000):
        listed = counts(number)
        assert listed[0] == 1
        assert listed[-1] == number
        assert listed == sorted(set(listed))


def test_axes_multiply_to_the_count():
    work = Workload.transformer(hidden=64, layers=6, heads=2, sequence=8, vocabulary=100, batch=8)
    listed = list(axes(8, work))
    assert len(listed) == len(set(listed)) == 10
    assert all(data * stage * width == 8 for data, stage, width in listed)
    assert all(stage <= 8 for _, stage, _ in listed)


def test_without_layers_to_split_there_is_no_width_and_with_one_layer_no_stage():
    assert list(axes(4, timed([1.0]))) == [(4, 1, 1)]


def test_a_batch_smaller_than_the_devices_leaves_fewer_layouts():
    assert list(axes(16, timed([1.0], batch=8))) == []


def test_what_is_kept_is_kept():
    work = drawn(3)
    plans = list(variants(cards(8), work, 4, 1, 1, {"variables": "mirrored"}))
    assert {plan.variables for plan in plans} == {"mirrored"}
    loose = list(variants(cards(8), work, 4, 1, 1, {"sync": "any"}))
    assert {plan.sync for plan in loose} == {"synchronous", "asynchronous", "local", "diloco", "elastic"}
    assert {plan.sync for plan in variants(cards(8), work, 4, 1, 1, {"sync": "diloco"})} == {"diloco"}


def test_virtual_devices_share_variables():
    assert {plan.variables for plan in variants(virtual(4, 2), timed(), 4, 1, 1, {})} == {"shared"}


def test_layers_are_dealt_so_that_stages_are_even_and_fit():
    work = timed([1.0, 1.0, 4.0, 1.0], parameters=100)
    (plan, *_) = variants(cards(4), work, 1, 2, 1, {})
    assert dealt(cards(4), work, plan).layers == (0, 0, 1, 1)
    small = cards(4, memory=500)
    assert dealt(small, work, plan).layers == (0, 0, 1, 1)
    assert dealt(cards(4, memory=150), work, plan) is None
