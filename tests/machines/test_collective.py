"""What travels between machines and how it is packed; real machines are in `test_peers.py`."""

import socket
from concurrent.futures import ThreadPoolExecutor

import pytest
import tensorflow as tf

import colonnade as cn
from colonnade.hardware.clusters.ring import Ring
from colonnade.run.machines import peers
from colonnade.run.machines.collective import Collective, can_travel, carried, packed
from colonnade.run.machines.peers import Peers, is_loss


@pytest.mark.parametrize("dtype", [tf.float32, tf.float64, tf.int32, tf.int64])
def test_numbers_that_are_summed_travel_as_they_are(dtype):
    assert carried(tf.zeros([2], dtype)).dtype == dtype


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16])
def test_half_floats_are_summed_in_whole_ones(dtype):
    """A sum of theirs would round, and overflow, at every machine."""
    assert carried(tf.zeros([2], dtype)).dtype == tf.float32


@pytest.mark.parametrize(
    ("values", "dtype"), [([0, 255], tf.uint8), ([-128, 127], tf.int8), ([2**32 - 1], tf.uint32)]
)
def test_others_travel_as_numbers_that_hold_all_their_values(values, dtype):
    there = carried(tf.constant(values, dtype))
    assert there.dtype == tf.int64
    assert tf.cast(there, dtype).numpy().tolist() == values


def test_truth_travels_as_a_number():
    assert tf.cast(carried(tf.constant([True, False])), tf.bool).numpy().tolist() == [True, False]


def test_what_has_no_sum_does_not_travel():
    assert not can_travel(tf.string)
    assert not can_travel(tf.complex64)
    assert can_travel(tf.bool)


def test_tensors_of_one_dtype_go_together():
    tensors = [tf.zeros(2), tf.zeros(2, tf.int64), tf.zeros([]), tf.zeros(3, tf.int64)]
    assert packed(tensors) == {tf.float32: [0, 2], tf.int64: [1, 3]}


@pytest.fixture
def pair():
    """Two machines, each of which computes in a thread of this process."""
    with socket.create_server(("127.0.0.1", 0)) as door:
        ends = []
        for _ in range(2):
            ends += [(socket.create_connection(door.getsockname()), door.accept()[0])]
    rings = [Ring(0, 2, ends[0][0], ends[1][1]), Ring(1, 2, ends[1][0], ends[0][1])]
    yield [Collective(ring) for ring in rings]
    for ring in rings:
        ring.close()


def on_both(pair, do):
    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(do, pair, range(2)))


def test_messages_of_a_graph_go_in_the_order_in_which_it_was_built(pair):
    """Though none needs another's result: of two that pass each other each would be taken for the other."""

    def computed(machine, rank):
        @tf.function
        def steps(times):
            total = tf.zeros([])
            for i in tf.range(times):
                own = tf.cast(i, tf.float32) + tf.range(3.0) * (rank + 1)
                one, other = machine.sum(own), machine.sum(-own)
                rows = machine.rows(tf.fill([rank + 1, 2], float(rank)))
                each = machine.each(tf.fill([2], rank))
                total += tf.reduce_sum(one + 2 * other) + tf.reduce_sum(rows)
                tf.debugging.assert_equal(each, [[0, 0], [1, 1]])
            return total

        assert not {op.type for op in steps.get_concrete_function(1).graph.get_operations()} & {"EagerPyFunc"}
        return float(steps(tf.constant(50)))

    # Of each turn: the sum is 2i + 3j for j of 0, 1, 2, which counts -1 times; machine 1 has two rows of 1.
    wanted = sum(-(6 * i + 9) + 4 for i in range(50))
    assert on_both(pair, computed) == [wanted, wanted]


def test_a_sum_keeps_its_values_while_a_graph_needs_them(pair):
    """The array that NumPy made becomes the tensor, and is used again when no tensor has it any more."""

    def computed(machine, rank):
        @tf.function
        def several():
            return [machine.sum(tf.fill([5_000], float(i + rank))) for i in range(6)]

        kept = several()
        for _ in range(10):
            several()
        return [sorted(set(one.numpy().tolist())) for one in kept]

    assert on_both(pair, computed) == [[[2.0 * i + 1] for i in range(6)]] * 2


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16, tf.int8, tf.bool, tf.float64])
def test_rows_of_every_kind_go_round(pair, dtype):
    """Those of sparse gradients have the dtype of their table."""

    def computed(machine, rank):
        return machine.rows(tf.cast(tf.fill([rank + 1, 3], rank), dtype))

    for rows in on_both(pair, computed):
        assert rows.dtype == dtype
        assert tf.cast(rows, tf.int32).numpy().tolist() == [[0] * 3, [1] * 3, [1] * 3]


def test_what_a_lost_machine_ends_is_known_by_its_error(pair):
    pair[0]._ring.close()
    with pytest.raises(tf.errors.UnknownError) as lost:
        tf.function(pair[1].sum)(tf.zeros([3]))
    assert is_loss(lost.value)


def test_sums_that_are_not_the_same_are_an_error_that_names_the_machine(pair, monkeypatch):
    """The other one hears that the connection has ended, and waits for nothing."""
    monkeypatch.setattr(peers, "LAST_WORDS", 0.0)

    def told(machine, rank):
        own = Peers(rank, ((), ()), ("a", "b"), meeting=Lost())
        try:
            with own.stepping():
                tf.function(machine.sum)(tf.zeros([3 + rank]))
        except (cn.InvalidArgument, Left) as error:
            return str(error)

    both = on_both(pair, told)
    assert any("machine='b': is at message 1 of 16 bytes, and the one before it sends" in one for one in both)
    assert all("is at message" in one or "has ended" in one for one in both)


class Left(Exception):
    pass


class Lost:
    """A meeting that ends its program by an exception."""

    def lost(self, words):
        raise Left(words)


def test_other_errors_are_no_loss():
    assert not is_loss(tf.errors.UnknownError(None, None, "ValueError: no"))
    assert not is_loss(tf.errors.UnavailableError(None, None, "the file system"))
