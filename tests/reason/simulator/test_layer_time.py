from dataclasses import replace

import pytest
from workloads import V100

from colonnade.describe.layer_cost import LayerCost, Timing
from colonnade.describe.link import Device
from colonnade.describe.workload import Workload
from colonnade.errors import InvalidArgument
from colonnade.reason.simulator.layer_time import (
    STRICT,
    addition_seconds,
    cheap_seconds,
    converted,
    gain,
    rate,
    seconds,
    slices,
    timed,
    update_seconds,
)


def test_one_timing_is_proportional_and_two_make_a_line():
    one = LayerCost("a", timings=(Timing(10, 1.0, 2.0),))
    assert timed(one, 5).backward == 1.0
    two = LayerCost("a", timings=(Timing(20, 3.0, 3.0), Timing(10, 2.0, 2.0)))
    assert timed(two, 10).forward == 2.0
    assert timed(two, 0).forward == pytest.approx(1.0)  # what a call costs
    assert timed(two, 40).forward == 5.0


def test_noise_in_timings_makes_no_negative_costs():
    falling = LayerCost("a", timings=(Timing(10, 2.0, 2.0), Timing(20, 1.0, 1.0)))
    assert timed(falling, 5).forward == 1.0


def test_examples_that_take_longer_in_larger_batches_take_outside_what_they_took_there():
    steep = LayerCost("a", timings=(Timing(10, 1.0, 1.0), Timing(20, 3.0, 3.0)))
    assert timed(steep, 5).forward == 0.5
    assert timed(steep, 0).forward == 0.0
    assert timed(steep, 10).forward == 1.0
    assert timed(steep, 15).forward == 2.0
    assert timed(steep, 40).forward == 6.0


def test_a_gain_lies_between_those_that_were_measured():
    """However far apart they are: as a difference they would cancel out to nothing."""
    far = LayerCost("a", timings=(Timing(10, 1.0, 2.0, 1e20), Timing(20, 1.0, 2.0, 1e-9)))
    assert gain(far, 20) == 1e-9
    assert gain(far, 5) == 1e20


def test_flops_and_bytes_without_timings():
    work = Workload.of([LayerCost("a", flops=1e12, activations=10**9)], batch=1)
    took = seconds(work, work.layers[0], Device(V100), rows=2)
    products = 2e12 / (15.7e12 * 0.803)
    assert took.forward == pytest.approx(products + 4e9 / 900e9)
    assert took.backward == 2 * took.forward


def test_a_width_divides_only_what_can_be_split():
    split = LayerCost("a", flops=1e12, activations=10**6, exchanged=1, exchanges=1, unsplit=10**6)
    whole = LayerCost("b", flops=1e12)
    work = Workload.of([split, whole], batch=1)
    card = Device(V100)
    assert seconds(work, split, card, 1, width=4).forward < seconds(work, split, card, 1).forward / 3
    assert seconds(work, whole, card, 1, width=4) == seconds(work, whole, card, 1)
    with_sequence = seconds(work, split, card, 1, 4, True)
    assert with_sequence.forward < seconds(work, split, card, 1, width=4).forward


def test_timings_of_another_card_are_scaled_by_what_both_reach():
    work = Workload.of(
        [LayerCost("a", timings=(Timing(1, 1.0, 1.0),))], batch=1, device="Tesla V100-SXM2-16GB"
    )
    faster = seconds(work, work.layers[0], Device("NVIDIA A100-SXM4-40GB"), 1)
    assert faster.forward == pytest.approx(15.7 / 156)  # with TF32
    with pytest.raises(InvalidArgument, match=r"timed on Tesla V100.*a card nobody knows"):
        seconds(work, work.layers[0], Device("a card nobody knows"), 1)


def test_what_a_processor_took_says_nothing_of_a_card():
    layer = LayerCost("a", flops=1e12, activations=10**9, timings=(Timing(1, 10.0, 20.0),))
    work = Workload.of([layer], batch=1, device="CPU:0")
    published = Workload.of([replace(layer, timings=())], batch=1)
    assert seconds(work, layer, Device(V100), 2) == seconds(published, published.layers[0], Device(V100), 2)
    assert seconds(work, layer, Device("CPU:3", cores=2), 1).forward == 10.0
    with pytest.raises(InvalidArgument, match=r"timed on CPU:0, has no FLOPs.*Tesla V100"):
        seconds(
            replace(work, layers=(replace(layer, flops=0.0),)), replace(layer, flops=0.0), Device(V100), 1
        )
    words = converted(work, [Device(V100)])
    assert "timed on CPU:0, which tells nothing of Tesla V100" in words
    assert "published rates" in words
    assert not converted(work, [Device("CPU:1")])
    assert not converted(published, [Device(V100)])


def test_updates_and_additions_are_scaled_by_the_memory_of_the_device():
    layer = LayerCost("a", flops=1.0, parameters=9 * 10**8, timings=(Timing(1, 1.0, 1.0),))
    work = Workload.of([layer], batch=1, device="CPU:0", update=0.2, addition=0.1, slots=9 * 10**8)
    card = Device(V100)
    assert update_seconds(work, Device("CPU:1")) == 0.2
    assert update_seconds(work, card) == pytest.approx(5 * 9e8 / 900e9)
    assert addition_seconds(work, card) == pytest.approx(3 * 9e8 / 900e9)
    between = replace(work, device="Tesla P100-SXM2-16GB")
    assert update_seconds(between, card) == pytest.approx(0.2 * 732 / 900)
    with pytest.raises(InvalidArgument, match="nobody knows"):
        update_seconds(work, Device("nobody knows"))


def test_slices_follow_the_speed_of_the_devices():
    work = Workload.of([("a", 1e12, 0)], batch=8)
    devices = [Device(V100), Device("NVIDIA A100-SXM4-40GB")]
    slow, fast = slices(work, devices, 100.0)
    assert slow + fast == pytest.approx(100)
    assert fast / slow == pytest.approx(156 / 15.7)
    assert slices(work, devices[:1] * 2, 10.0, [3.0, 1.0]) == pytest.approx([2.5, 7.5])


def test_what_was_measured_comes_before_what_was_published():
    assert rate(Device(V100, achieved=5e12), "float32") == 5e12
    assert rate(Device(V100), "float16") > rate(Device(V100), "float32")
    assert rate(Device("nobody knows"), "float32") is None


def test_every_dtype_has_a_rate_of_its_own():
    """What was measured in float32 says nothing of 16 bits, and TF32 is what TensorFlow computes in."""
    a100 = Device("NVIDIA A100-SXM4-80GB", achieved=120e12)
    assert rate(a100, "bfloat16") == rate(Device(a100.name), "bfloat16") == pytest.approx(312e12 * 0.803)
    assert rate(replace(a100, achieved_half=270e12), "float16") == 270e12
    assert rate(a100, "float32") == 120e12
    assert rate(Device(a100.name), "float32") == pytest.approx(156e12 * 0.803)
    assert rate(a100, STRICT) == rate(Device(a100.name), STRICT) == pytest.approx(19.5e12 * 0.803)
    assert rate(Device("nobody knows", achieved=1e12), "float16") == 1e12
    assert rate(Device("NVIDIA H100 PCIe"), "float16") == pytest.approx(756e12 * 0.803)


def test_a_device_of_which_nothing_is_known_is_named():
    work = Workload.of([("a", 1e9, 0)], batch=1)
    with pytest.raises(InvalidArgument, match="nobody knows"):
        seconds(work, work.layers[0], Device("nobody knows"), 1)


def test_cheap_activations_cost_their_flops_and_being_written_and_read_again():
    """Attention has few FLOPs and most of the bytes of a block: to make it again is to move these."""
    layer = LayerCost("a", flops=1e12, activations=10**9, cheap=8 * 10**8, cheap_flops=1e10)
    work = Workload.of([layer, ("none", 0.0, 1)], batch=1, pace=1.5)
    products, moving = 2 * 1e10 / (15.7e12 * 0.803), 2 * 2 * 8e8 / 900e9
    assert cheap_seconds(work, layer, Device(V100), 2) == pytest.approx(1.5 * (products + moving))
    assert cheap_seconds(work, work.layers[1], Device(V100), 1) == 0.0


def test_cheap_activations_of_a_layer_that_was_timed_take_their_part_of_its_flops():
    layer = LayerCost("a", 100.0, activations=10, cheap=5, cheap_flops=25.0, timings=(Timing(1, 4.0, 8.0),))
    work = Workload.of([layer, LayerCost("b", timings=(Timing(1, 1.0, 1.0),))], batch=1)
    assert cheap_seconds(work, layer, Device(V100), 1) == 1.0
    assert cheap_seconds(work, work.layers[1], Device(V100), 1) == 0.0
