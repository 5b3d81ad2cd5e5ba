from colonnade.describe.waits import HOST, PROGRAM, blamed

WORK = {
    "CPU:0": {"forward": [(0, 4)], "update": [(6, 8)], "reduction": [(5, 6)]},
    "CPU:1": {"forward": [(0, 1)]},
    HOST: {"input": [(0, 9)], "checkpoint": [(3, 4)]},
}


def test_every_second_has_one_cause():
    assert blamed("CPU:1", [(1, 10)], WORK) == {
        "checkpoint": [(3, 4)],
        "CPU:0": [(1, 3)],
        "reduction": [(5, 6)],
        "update": [(6, 8)],
        "input": [(4, 5), (8, 9)],
        PROGRAM: [(9, 10)],
    }


def test_devices_that_are_free_do_not_wait_for_others_to_compute():
    found = blamed("CPU:1", [(1, 10)], WORK, {"input": [(7, 8)]}, free=True)
    assert found["input"] == [(1, 3), (4, 5), (7, 9)]
    assert found["update"] == [(6, 7)]
    assert "CPU:0" not in found
