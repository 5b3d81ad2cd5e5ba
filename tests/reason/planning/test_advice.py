from colonnade.describe.plan import Plan, Prediction
from colonnade.reason.planning.advice import advice, longer, too_large, why_slower
from colonnade.reason.simulator.memory_need import Need


def predicted(step, **parts):
    return Prediction(
        step, 8 / step if step else 0.0, 0.5, 100, parts.pop("moved", 0), parts.pop("busiest", 10), **parts
    )


ONE, TWO = Plan(batch=8), Plan(batch=8, data=2)


def test_staying_on_one_device_says_why():
    line = advice(ONE, predicted(1.0), predicted(1.0), (TWO, predicted(1.3, reduction=0.3)))
    assert line.startswith(
        "Stay on one device: 2 devices (2 replicas, mirrored) would take 1.3 times as long, because"
    )
    assert "reduction" in line
    assert "there is no other" in advice(ONE, predicted(1.0), predicted(1.0), None)


def test_using_several_says_how_much_faster():
    line = advice(TWO, predicted(0.5), predicted(1.0), None)
    assert "2 times as fast as one device (50% efficiency)" in line
    assert "one device is too small" in advice(TWO, predicted(0.5), None, None)


def test_what_takes_no_time_is_not_divided_by():
    assert "would take as long" in advice(ONE, predicted(0.0), predicted(0.0), (TWO, predicted(0.0)))
    assert "0 us" in advice(TWO, predicted(0.0), predicted(0.0), None)


def test_a_plan_for_other_software_says_so():
    wide = Plan(batch=8, width=2)
    assert "It is for other software" in advice(wide, predicted(0.5), predicted(1.0), None)


def test_each_part_of_a_step_can_be_the_reason():
    least = predicted(1.0, compute=1.0)
    staged = Plan(batch=8, stage=2, micro_batches=2)
    assert "stages wait" in why_slower(staged, predicted(2.0, compute=1.0, waiting=1.0), TWO, least)
    assert "replicas wait" in why_slower(TWO, predicted(2.0, compute=1.0, waiting=1.0), TWO, least)
    late = Plan(batch=8, data=2, sync="asynchronous")
    assert "each other's updates" in why_slower(late, predicted(2.0, compute=1.0, waiting=1.0), TWO, least)
    assert "the update takes" in why_slower(TWO, predicted(2.0, compute=1.0, update=1.0), TWO, least)
    assert "adding up" in why_slower(TWO, predicted(2.0, compute=1.0, reduction=1.0, busiest=0), TWO, least)
    assert "one device for the work" in why_slower(ONE, predicted(2.0, compute=2.0), TWO, least)
    again = Plan(batch=8, data=2, recompute="full")
    assert "computed twice" in why_slower(again, predicted(2.0, compute=2.0), TWO, least)
    wide = Plan(batch=8, width=2)
    assert "exchange" in why_slower(wide, predicted(2.0, compute=2.0), TWO, least)


def test_what_is_faster_and_cannot_be_run_says_so():
    wide = Plan(batch=8, width=2)
    assert "cannot be run" in why_slower(wide, predicted(0.5), TWO, predicted(1.0))


def test_as_fast_with_more_devices_or_more_bytes():
    four = Plan(batch=8, data=4)
    assert why_slower(four, predicted(1.0), TWO, predicted(1.0)) == "takes as long and 4 devices instead of 2"
    assert "moves" in why_slower(TWO, predicted(1.0, moved=5), TWO, predicted(1.0))


def test_what_does_not_fit_has_its_numbers():
    parts = "parameters 1 GiB, gradients 1 GiB, activations 2 GiB"
    line = too_large(Need(2**30, 2**30, 0, 2**31), 2**31)
    assert line == f"does not fit: a device needs 4 GiB ({parts}) and has 2 GiB"


def test_ratios_in_words():
    assert longer(1.0) == "as long"
    assert longer(2.345) == "2.3 times as long"
