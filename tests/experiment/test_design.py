from colonnade.experiment.design import MODES, Design, Trial


def test_all_that_was_asked_for_is_tried():
    asked = {"synchronous", "asynchronous", "staleness 1", "staleness 4", "staleness 16"}
    assert asked | {"local 8", "DiLoCo 32", "elastic"} <= set(MODES)
    design = Design()
    assert (design.devices, design.seeds) == ((1, 2, 4, 6, 8), 5)
    assert len(list(design.trials())) == len(MODES) * 5 * 2
    assert all(design.batch % count == 0 for count in design.devices)  # slices of one size
    assert design.steps % 32 == 0  # DiLoCo ends with a join
    assert design.examples[-1] == design.steps * design.batch


def test_the_last_device_is_four_times_slower():
    assert Trial("asynchronous", 3, "one slow").seconds == [1.0, 1.0, 4.0]
    assert Trial("asynchronous", 3, "even").seconds == [1.0, 1.0, 1.0]


def test_speeds_count_only_where_devices_can_overtake_each_other():
    slow = Trial("asynchronous", 2, "one slow")
    assert slow.stand_in == slow
    assert Trial("asynchronous", 1, "one slow").stand_in == Trial("asynchronous", 1, "even")
    assert Trial("local 8", 6, "one slow").stand_in == Trial("local 8", 6, "even")
