"""Timelines of ops, told by their names."""

from dataclasses import replace

import pytest

from colonnade.describe.waits import EDGE, HOST, OTHER_MACHINES, PROGRAM
from colonnade.hardware.profile import FETCH, MARK, ProfiledOp
from colonnade.run.trace.op_timeline import Places, op_timeline

TWO = Places(["CPU:0", "CPU:1"])
LOOP = "while/body/_1/while/"


def ops(*rows):
    return [ProfiledOp(name, op, start, end, *more) for name, op, start, end, *more in rows]


def step(at):
    """A step of two replicas, as the profiler tells it; the first gradient op of each comes early."""
    rows = []
    for i in range(2):
        call = f"{LOOP}replica_{i}_on_CPU_{i}/StatefulPartitionedCall/"
        rows += [
            (f"{call}dense/ReadVariableOp", "ReadVariableOp", at - 0.5, at - 0.4),
            (f"{call}gradient_tape/Shape", "Shape", at, at + 0.01),
            (f"{call}dense/MatMul", "MatMul", at + 0.02, at + 2),
            (f"{call}gradient_tape/dense/MatMul", "MatMul", at + 2, at + 5 + i),
            (f"{call}Sum_1", "Sum", at + 5 + i, at + 5.1 + i),
        ]
    rows += [
        (f"{LOOP}reduction_0_from_CPU_1_to_CPU_0_bytes_64/add", "AddV2", at + 6.2, at + 6.3),
        (f"{LOOP}reduction_1_from_CPU_1_to_CPU_0_bytes_8/add", "AddV2", at + 6.3, at + 6.4),
        (f"{LOOP}update_0/StatefulPartitionedCall/adam/mul", "Mul", at + 6.5, at + 6.6),
        (f"{LOOP}update_0/StatefulPartitionedCall/adam/Assign", "Assign", at + 6.6, at + 7),
        ("", FETCH, at + 3, at + 4, 4096),
    ]
    return rows


def found(timeline, *kinds):
    return [
        (e.device, e.kind, e.step, round(e.start, 6), round(e.end, 6))
        for e in timeline.events
        if e.kind in kinds
    ]


def test_replicas_reduction_update_and_input():
    timeline = op_timeline(ops(*step(0.0), *step(10.0)), TWO, first=7)
    assert timeline.steps == (7, 8)
    assert found(timeline, "forward", "backward", "update") == [
        ("CPU:0", "forward", 7, 0.0, 2.0),
        ("CPU:1", "forward", 7, 0.0, 2.0),
        ("CPU:0", "backward", 7, 2.0, 5.1),
        ("CPU:1", "backward", 7, 2.0, 6.1),
        ("CPU:0", "update", 7, 6.5, 7.0),
        ("CPU:0", "forward", 8, 10.0, 12.0),
        ("CPU:1", "forward", 8, 10.0, 12.0),
        ("CPU:0", "backward", 8, 12.0, 15.1),
        ("CPU:1", "backward", 8, 12.0, 16.1),
        ("CPU:0", "update", 8, 16.5, 17.0),
    ]
    reductions = [event for event in timeline.events if event.kind == "reduction"]
    assert [(e.bucket, e.bytes, e.link, e.step) for e in reductions] == [
        (0, 64, "CPU:1 -> CPU:0", 7),
        (1, 8, "CPU:1 -> CPU:0", 7),
        (0, 64, "CPU:1 -> CPU:0", 8),
        (1, 8, "CPU:1 -> CPU:0", 8),
    ]
    (first, _) = [event for event in timeline.events if event.kind == "input"]
    assert (first.device, first.bytes, first.step) == (HOST, 4096, 7)


def test_waiting_fills_what_is_left():
    timeline = op_timeline(ops(*step(0.0)), TWO)
    waits = [e for e in timeline.events if e.kind == "waiting"]
    assert {event.step for event in waits} == {1}
    assert [(e.device, e.cause, round(e.start, 6), round(e.end, 6)) for e in waits] == [
        ("CPU:0", "CPU:1", 5.1, 6.1),
        ("CPU:0", PROGRAM, 6.1, 6.2),
        ("CPU:1", PROGRAM, 6.1, 6.2),
        ("CPU:1", "reduction", 6.2, 6.4),
        ("CPU:0", PROGRAM, 6.4, 6.5),
        ("CPU:1", PROGRAM, 6.4, 6.5),
        ("CPU:1", "update", 6.5, 7.0),
    ]
    for device in TWO.devices:
        own = [event for event in timeline.events if event.device == device]
        assert sum(event.seconds for event in own) == pytest.approx(timeline.span)


def test_a_message_that_waits_for_a_slow_device_is_no_work_meanwhile():
    """The gradients of two devices are added at once; that of the third comes late, and then the update."""
    three = Places(["CPU:0", "CPU:1", "CPU:2"])
    rows = [(f"replica_{i}_on_CPU_{i}/MatMul", "MatMul", 0.0, 9.0 if i == 2 else 1.0) for i in range(3)]
    message = "reduction_0_from_CPU_1.CPU_2_to_CPU_0_bytes_64"
    rows += [
        (f"{message}/add", "AddV2", 1.0, 1.5),
        (f"{message}/add_1", "AddV2", 9.0, 9.5),
        ("update_0/adam/first", "Mul", 1.5, 2.0),
        ("update_0/adam/second", "Mul", 9.5, 10.0),
        ("update_0/adam/third", "Mul", 10.2, 10.5),  # nobody computes before it: it goes on
    ]
    timeline = op_timeline(ops(*rows), three)
    assert found(timeline, "reduction", "update") == [
        ("CPU:0", "reduction", 1, 1.0, 1.5),
        ("CPU:0", "update", 1, 1.5, 2.0),
        ("CPU:0", "reduction", 1, 9.0, 9.5),
        ("CPU:0", "update", 1, 9.5, 10.5),
    ]
    assert sum(event.bytes for event in timeline.events if event.kind == "reduction") == 64
    assert timeline.breakdown().waited_for["CPU:0"] == {"CPU:2": 7.0}


def test_a_device_without_work_waits_all_the_time():
    alone = ops(("replica_0_on_CPU_0/MatMul", "MatMul", 1.0, 2.0))
    with pytest.warns(UserWarning, match="lacks what CPU:1 computed"):
        assert found(op_timeline(alone, TWO), "waiting") == [("CPU:1", "waiting", None, 0.0, 1.0)]


def test_an_op_that_is_held_up_once_does_not_move_the_way_back():
    """Its last op, of the forward pass, takes ten times what the whole step does."""
    *rows, last = step(20.0)[:5]
    held = (*last[:3], last[3] + 50.0)
    timeline = op_timeline(ops(*step(0.0), *step(10.0), *step(20.0)[5:10], *rows, held), TWO)
    backward = [(e.device, e.step) for e in timeline.events if e.kind == "backward"]
    assert sorted(backward) == [(f"CPU:{i}", n) for i in range(2) for n in (1, 2, 3)]


def test_updates_that_sum_and_updates_of_owners():
    rows = [
        ("replica_0_on_CPU_0/MatMul", "MatMul", 0.0, 1.0),
        ("replica_1_on_CPU_1/MatMul", "MatMul", 0.0, 1.0),
        ("a/update_0_sums_640/StatefulPartitionedCall", "StatefulPartitionedCall", 1.0, 2.0),
        ("a/update_0/StatefulPartitionedCall/sgd/w", "Assign", 3.0, 4.0),
        ("a/update_0/StatefulPartitionedCall/sgd/b", "Assign", 5.0, 6.0),
    ]
    places = Places(["CPU:0", "CPU:1"], updates={(0, "sgd/b"): "CPU:1"})
    events = [event for event in op_timeline(ops(*rows), places).events if event.kind == "update"]
    assert [(e.device, e.start, e.end, e.bytes) for e in events] == [
        ("CPU:0", 1.0, 4.0, 640),
        ("CPU:1", 5.0, 6.0, 0),
    ]


def test_tasks_of_a_pipeline():
    rows = [
        (f"row_1_stage_{s}_{t}/x", "MatMul", at + begin, at + begin + 1)
        for at in (0.0, 10.0)
        for s, t, begin in ((0, "F0", 0), (1, "F0", 1), (1, "B0", 2), (0, "B0", 3))
    ]
    rows += [(name.replace("row_1", "row_0"), *rest) for name, *rest in rows]
    places = Places(["CPU:1", "CPU:3"], rows=[["CPU:0", "CPU:1"], ["CPU:2", "CPU:3"]])
    timeline = op_timeline(ops(*rows), places)
    one = [event for event in timeline.events if event.replica == 1 and event.step == 2]
    assert [(e.device, e.kind, e.stage, e.micro_batch, e.start) for e in one if e.kind != "waiting"] == [
        ("CPU:2", "forward", 0, 0, 10.0),
        ("CPU:3", "forward", 1, 0, 11.0),
        ("CPU:3", "backward", 1, 0, 12.0),
        ("CPU:2", "backward", 0, 0, 13.0),
    ]


def test_devices_that_do_not_wait_for_each_other_wait_for_updates_input_and_saves():
    rows = [
        ("slice CPU:0 3", MARK, 0.0, 1.0),
        ("slice CPU:1 3", MARK, 0.0, 1.2),
        ("update CPU:0 3 64", MARK, 1.0, 1.5),
        ("update CPU:1 3 64", MARK, 1.5, 2.0),
        ("queue CPU:0", MARK, 1.6, 3.0),
        ("queue CPU:1", MARK, 2.0, 3.5),
        ("", FETCH, 1.8, 2.9, 4096),
        ("checkpoint 4", MARK, 3.1, 3.4),
        ("slice CPU:0 4", MARK, 3.0, 5.0),
        ("slice CPU:1 4", MARK, 3.5, 4.0),
        ("something else", MARK, 0.0, 9.0),
    ]
    timeline = op_timeline(ops(*rows), Places(["CPU:0", "CPU:1"], free=True, dealt=False))
    assert [(e.device, e.cause, e.start, e.end) for e in timeline.events if e.kind == "waiting"] == [
        ("CPU:1", "update", 1.2, 1.5),
        ("CPU:0", "update", 1.5, 1.8),
        ("CPU:0", "input", 1.8, 2.9),
        ("CPU:1", "input", 2.0, 2.9),
        ("CPU:0", PROGRAM, 2.9, 3.0),
        ("CPU:1", PROGRAM, 2.9, 3.1),
        ("CPU:1", "checkpoint", 3.1, 3.4),
        ("CPU:1", PROGRAM, 3.4, 3.5),
        ("CPU:1", EDGE, 4.0, 5.0),
    ]
    assert timeline.breakdown().waited_for["CPU:0"] == pytest.approx(
        {"update": 0.3, "input": 1.1, PROGRAM: 0.1}
    )


def test_what_was_fetched_for_the_first_step_belongs_to_it_and_the_end_of_data_is_no_input():
    rows = [
        ("", FETCH, 0.0, 1.0, 64),
        ("replica_0_on_CPU_0/MatMul", "MatMul", 1.0, 2.0),
        ("", FETCH, 1.5, 1.6, 0),
        ("", FETCH, 2.1, 2.2, 64),
    ]
    timeline = op_timeline(ops(*rows), Places(["CPU:0"]))
    assert [(e.start, e.end) for e in timeline.events if e.kind == "input"] == [(0.0, 1.0)]
    assert timeline.breakdown().waited_for == {"CPU:0": {"input": 1.0}}


def test_a_loop_of_the_users_own_makes_no_steps():
    rows = [*step(0.0), *step(10.0)]
    rows += [("replica_0_on_CPU_0/while/x", "Mul", t, t + 0.1) for t in (0.0, 0.2, 0.4, 0.6, 10.5)]
    assert op_timeline(ops(*rows), TWO).steps == (1, 2)


def test_names_of_the_users_own_mean_nothing_inside_a_replica():
    rows = [("replica_0_on_CPU_1/update_0/reduction_0_from_A_1_to_B_0_bytes_9/x", "Mul", 0.0, 1.0)]
    assert found(op_timeline(ops(*rows), Places(["CPU:1"])), "forward") == [("CPU:1", "forward", 1, 0.0, 1.0)]


def test_nothing_at_all():
    assert op_timeline([], TWO).events == ()


def test_messages_between_machines_are_of_the_host_and_waited_for():
    rows = [
        ("replica_0_on_CPU_0/MatMul", "MatMul", 0.0, 1.0),
        ("while/machines_7_bytes_64", "CollectiveReduceV2", 1.0, 3.0),
        ("while/machines_7_bytes_64", "CollectiveReduceV2", 1.5, 3.0),  # TensorFlow records its start twice
        ("update_0/StatefulPartitionedCall/adam/mul", "Mul", 3.0, 4.0),
    ]
    timeline = op_timeline(ops(*rows), Places(["CPU:0"]))
    (message,) = [e for e in timeline.events if e.kind == "reduction"]
    assert (message.device, message.start, message.end, message.bytes) == (HOST, 1.0, 3.0, 64)
    breakdown = timeline.breakdown()
    assert breakdown.waited_for == {"CPU:0": {OTHER_MACHINES: 2.0}}
    assert breakdown.advice()[0].startswith("other machines: 50% of the time")


def test_a_device_that_is_not_seen_to_compute_is_named_where_it_must_have():
    """Asynchronous devices take slices as they are free, so one of them may get none."""
    alone = [op for op in ops(*step(0.0)) if "replica_1" not in op.name]
    with pytest.warns(UserWarning, match="lacks what CPU:1 computed"):
        op_timeline(alone, TWO)
    op_timeline(alone, replace(TWO, dealt=False))  # warnings are errors here
