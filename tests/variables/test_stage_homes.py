"""Variables of a pipeline live with their stage, once in every row."""

import tensorflow as tf

from colonnade.run.trace.traced import trace
from colonnade.run.variables.parts import give_home
from colonnade.run.variables.stage_homes import StageHomes

ROWS = [["/device:CPU:0", "/device:CPU:1"], ["/device:CPU:2", "/device:CPU:3"]]


def made():
    first, second = tf.Variable(1.0, name="first"), tf.Variable(2.0, name="second")
    return first, second, StageHomes(ROWS, {first.ref(): 0, second.ref(): 1}, [first, second], [])


def test_a_variable_lives_with_its_stage_in_every_row():
    first, second, homes = made()
    places = [[v.device[-5:] for v in homes.own(row, [first, second])] for row in range(2)]
    assert places == [["CPU:0", "CPU:1"], ["CPU:2", "CPU:3"]]


def test_values_go_in_before_steps_and_come_out_after_them():
    first, second, homes = made()
    first.assign(10.0)
    homes.enter()
    assert [float(homes.own(row, [first])[0]) for row in range(2)] == [10.0, 10.0]
    homes.own(0, [second])[0].assign(20.0)
    homes.leave()
    assert (float(first), float(second)) == (10.0, 20.0)


def test_stages_have_handles_of_their_own_for_what_is_tied():
    w = tf.Variable(3.0)
    captures = trace(lambda x: x * w, tf.TensorSpec([])).captures
    homes = StageHomes(ROWS, {w.ref(): 1}, [w], [])
    one, other = (homes.at_stage(0, stage, captures)[w.ref()] for stage in (0, 1))
    assert one is not other
    assert homes.at_stage(0, 1, captures)[w.ref()] is other
    assert one.device.endswith("CPU:1")  # both are where the variable is
    assert other.device.endswith("CPU:1")


def test_what_the_function_changes_is_kept_once_in_every_row():
    count = tf.Variable(0.0, trainable=False)
    captures = trace(lambda x: x + count.assign_add(1.0), tf.TensorSpec([])).captures
    homes = StageHomes(ROWS, {count.ref(): 1}, [], [])
    homes.at_stage(0, 1, captures)
    (state,) = homes.states.values()
    assert [copy.device[-5:] for copy in state.copies] == ["CPU:1", "CPU:3"]


def test_a_part_of_a_layer_that_is_split_by_width_stays_where_it_is():
    part = tf.Variable(1.0)
    give_home(part, "/device:CPU:5")
    homes = StageHomes(ROWS, {part.ref(): 0}, [part], [])
    assert homes.own(1, [part]) == [part]


def test_what_is_only_read_is_kept_with_a_save():
    """A callback may have changed it: what goes on from there reads what it was."""
    w, scale = tf.Variable(1.0, name="w"), tf.Variable(2.0, trainable=False, name="scale")
    count, slot = tf.Variable(0.0, trainable=False), tf.Variable(0.0, trainable=False)
    captures = trace(lambda x: x * w * scale * slot + count.assign_add(1.0), tf.TensorSpec([])).captures
    homes = StageHomes(ROWS, {v.ref(): 0 for v in (w, scale, count, slot)}, [w], [slot])
    homes.at_stage(0, 1, captures)
    assert homes.constants() == [scale]
    homes.own(0, [scale])[0].assign(3.0)
    assert float(homes.current(scale)) == 3.0
