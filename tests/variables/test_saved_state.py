"""What a checkpoint keeps of an engine, and how it goes on from that."""

import numpy as np
import tensorflow as tf

from colonnade.run.trace.traced import trace
from colonnade.run.variables import part_offset
from colonnade.run.variables.homes import Homes
from colonnade.run.variables.saved_state import REPLICAS, Item, SavedState, bases, named, resume, state_of

DEVICES = ["/device:CPU:0", "/device:CPU:1"]


class Training:
    """A parameter, a moving average, a count, a random stream, and something that is only read."""

    def __init__(self, num_devices=2, mode="mirrored"):
        self.w = tf.Variable(1.0, name="w")
        self.moving = tf.Variable(2.0, trainable=False, name="moving")
        self.seen = tf.Variable(3, trainable=False, name="seen", aggregation=tf.VariableAggregation.SUM)
        self.scale = tf.Variable(4.0, trainable=False, name="scale")
        self.generator = tf.random.Generator.from_seed(5)
        self.updates = tf.Variable(0, dtype=tf.int64)
        traced = trace(self.loss, tf.TensorSpec([]))
        self.housed = Homes(mode, DEVICES[:num_devices], [self.w], [])
        if mode == "partitioned":
            self.housed.deal({self.w.ref(): 1}, DEVICES)
        for replica in range(num_devices):
            self.housed.bindings(replica, traced.captures)

    def loss(self, x):
        self.moving.assign_add(1.0)
        self.seen.assign_add(1)
        return x * self.w * self.scale + self.generator.uniform([])

    @property
    def state(self):
        return state_of(self.housed, self.updates)

    @property
    def stream(self):
        (name,) = self.state.random
        return name


def test_what_all_replicas_have_in_common_is_kept_once():
    state = Training().state
    states = {"states/moving", "states/seen", "states/StateVar"}  # the last is the generator's
    assert set(state.common) == {"parameters/w", *states, "constants/scale", "updates"}
    assert set(state.own) == {"seen", *state.random}
    assert len(state.random) == 1
    kept = state.variables()
    assert {f"{REPLICAS}0/seen", f"{REPLICAS}1/seen"} <= set(kept)


def test_a_snapshot_does_not_change_with_later_steps():
    training = Training()
    before = training.state.snapshot()
    training.w.assign(100.0)
    assert float(before["parameters/w"]) == 1.0
    assert float(training.state.snapshot()["parameters/w"]) == 100.0


def test_partitioned_values_are_those_of_their_owner():
    training = Training(mode="partitioned")
    training.housed.enter()
    training.housed.current(training.w).assign(50.0)
    assert float(training.state.snapshot()["parameters/w"]) == 50.0


def test_copies_take_the_values_of_the_originals_and_replicas_their_own():
    training = Training()
    saved = {"seen": [10, 20], training.stream: [np.array([1, 2, 3]), np.array([4, 5, 6])]}
    training.w.assign(7.0)
    training.moving.assign(8.0)
    resume(training.housed, saved)
    assert [float(training.housed.own(i, [training.w])[0]) for i in range(2)] == [7.0, 7.0]
    own = training.state.own
    assert [int(copy) for copy in own["seen"]] == [10, 20]
    assert [copy.numpy().tolist() for copy in own[training.stream]] == [[1, 2, 3], [4, 5, 6]]
    moving = next(s for s in training.housed.states.values() if s.original is training.moving)
    assert [float(copy) for copy in moving.copies] == [8.0, 8.0]


def test_a_replica_that_was_not_saved_draws_a_stream_of_its_own():
    training = Training()
    original = training.generator.state.numpy()  # replica 0 has the user's own stream
    resume(training.housed, {training.stream: [original], "seen": [10]})
    first, second = (copy.numpy().tolist() for copy in training.state.own[training.stream])
    assert first == original.tolist()
    assert second != first
    # What is no stream is one's own only where there are as many replicas as before.
    assert [int(copy) for copy in training.state.own["seen"]] == [3, 3]


def test_sums_have_a_base_for_each_replica():
    training = Training()
    (name,) = bases(training.housed)
    assert name == "bases/seen"
    assert [int(base) for base in bases(training.housed)[name]] == [3, 3]


def test_names_of_parts_have_their_slice_behind_a_bar():
    made = [tf.Variable(tf.zeros([2, n]), name=f"kernel_part_{i}") for i, n in enumerate((3, 1))]
    part_offset.mark(made, axis=1)
    other = tf.Variable(0.0, name="kernel")
    assert list(named([*made, other])) == ["kernel|2 4 0,2:0,3", "kernel|2 4 0,2:3,1", "kernel~1"]


def test_the_tensors_of_a_state_are_read_where_they_are_now():
    original, current = tf.Variable(1.0), tf.Variable(2.0)
    state = SavedState({"w": Item(original, current)}, {"s": (current, original)}, frozenset())
    values = {name: float(value) for name, value in state.snapshot().items()}
    assert values == {"w": 2.0, f"{REPLICAS}0/s": 2.0, f"{REPLICAS}1/s": 1.0}
