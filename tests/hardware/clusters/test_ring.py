"""A ring of machines, which are threads here: what goes round is exact, in step, or an error."""

import os
import socket
import struct
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from colonnade.hardware.clusters.ring import HEAD, ROOMS, SMALL, OutOfStep, Ring, RingBroken, _kind


@pytest.fixture
def circle():
    """Makes rings of so many machines; what each returned of what it was asked to do."""
    connections = []

    def made(size):
        pairs = [_connected() for _ in range(size)]
        for pair in pairs:
            connections.extend(pair)
        return [Ring(rank, size, pairs[rank][0], pairs[rank - 1][1]) for rank in range(size)]

    yield made
    for connection in connections:
        connection.close()


def _connected():
    """Both ends of a connection through the network of this machine: a socketpair has no keepalive."""
    with socket.create_server(("127.0.0.1", 0)) as door:
        near = socket.create_connection(door.getsockname())
        far, _ = door.accept()
    return near, far


def each(rings, do):
    """What every machine of a ring returns; they all work at the same time."""
    with ThreadPoolExecutor(len(rings)) as pool:
        futures = [pool.submit(do, rank, ring) for rank, ring in enumerate(rings)]
        return [future.result(timeout=60) for future in futures]


def numbers(rank, size, dtype):
    return np.random.default_rng(rank).integers(-1000, 1000, size).astype(dtype)


@pytest.mark.parametrize("machines", [2, 3, 5])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64"])
def test_sums_of_all_sizes_are_exact(circle, machines, dtype):
    """Whole numbers, which no order of additions rounds: fewer than machines, odd counts, above SMALL."""
    rings = circle(machines)
    for size in (0, 1, 2, 7, SMALL // 8 + 1, SMALL, 200_003):
        wanted = np.sum([numbers(rank, size, dtype) for rank in range(machines)], axis=0).astype(dtype)
        for total in each(rings, lambda rank, ring, n=size: ring.sum(numbers(rank, n, dtype))):
            assert total.dtype == dtype
            np.testing.assert_array_equal(total, wanted)


@pytest.mark.parametrize("machines", [2, 3, 4])
def test_sums_have_the_same_bits_on_every_machine(circle, machines):
    """Else parameters would drift apart."""
    rings = circle(machines)
    for size in (5, SMALL, 100_001):
        totals = each(
            rings, lambda rank, ring, n=size: ring.sum(np.random.default_rng(rank).normal(size=n)).tobytes()
        )
        assert len(set(totals)) == 1


def test_what_is_not_finite_stays_so(circle):
    rings = circle(2)
    own = [np.array([np.inf, np.nan, 3e38, -0.0], "f4"), np.array([-np.inf, 1, 3e38, -0.0], "f4")]
    for total in each(rings, lambda rank, ring: ring.sum(own[rank])):
        assert np.isnan(total[:2]).all()
        assert total[2] == np.inf
        assert np.signbit(total[3])


def test_what_was_summed_before_keeps_its_values_while_somebody_holds_it(circle):
    """Room is used again when nobody refers to it any more, and not sooner."""
    rings = circle(3)

    def sums(rank, ring):
        kept = [ring.sum(np.full(30_000, i + rank, "f4")) for i in range(4)]
        views = [ring.sum(np.full(30_000, i + rank, "f4")).reshape(3, -1)[1:] for i in range(4)]
        copies = [kept[i].copy() for i in range(4)]
        for i in range(8):
            ring.sum(np.full(30_000, -i, "f4"))
        return kept, views, copies

    for kept, views, copies in each(rings, sums):
        for i in range(4):
            assert (kept[i] == 3 * i + 3).all()
            assert (views[i] == 3 * i + 3).all()
            np.testing.assert_array_equal(kept[i], copies[i])


def test_room_is_used_again(circle):
    """New memory for 40 MB costs as much as the sum."""
    (own, other) = circle(2)

    def places(rank, ring):
        return {ring.sum(np.ones(10_000, "f4")).ctypes.data for _ in range(20)}

    for found in each([own, other], places):
        assert len(found) <= 2


def test_arrays_begin_where_tensorflow_takes_them_as_they_are(circle):
    for total in each(circle(2), lambda rank, ring: ring.sum(np.ones(1_001, "f8"))):
        assert total.ctypes.data % 64 == 0


@pytest.mark.parametrize("machines", [2, 4])
def test_rows_of_all_come_by_rank_however_many_each_has(circle, machines):
    rings = circle(machines)
    counts = [3, 0, 50_000, 1][:machines]
    for every in each(rings, lambda rank, ring: ring.every(np.full((counts[rank], 2), rank, "i8"))):
        assert [len(rows) for rows in every] == counts
        for rank, rows in enumerate(every):
            assert (rows == rank).all()
            assert rows.shape[1:] == (2,)


def test_a_transposed_array_travels_by_its_values(circle):
    own = np.arange(12.0).reshape(3, 4).T
    for every in each(circle(2), lambda rank, ring: ring.every(own + rank)):
        np.testing.assert_array_equal(every[1], own + 1)


def test_a_machine_that_comes_late_is_waited_for(circle):
    go = threading.Event()

    def late(rank, ring):
        if rank == 1:
            go.wait(1.0)
        return ring.sum(np.ones(100_000, "f4"))[0]

    assert each(circle(3), late) == [3.0] * 3


def error_of(do):
    try:
        do()
    except (RingBroken, OutOfStep) as error:
        return error
    return None


@pytest.mark.parametrize("machines", [2, 3])
def test_sums_of_different_sizes_are_an_error(circle, machines):
    rings = circle(machines)
    found = each(rings, lambda rank, ring: error_of(lambda: ring.sum(np.ones(10 + (rank == 1), "f4"))))
    assert any(isinstance(error, OutOfStep) for error in found)


def test_another_turn_is_an_error_that_names_both(circle):
    near, far = circle(2)
    near._onward.setblocking(True)
    near._onward.sendall(HEAD.pack(7, 4, _kind("sum", np.ones(1, "f4"))) + struct.pack("f", 1.0))
    with pytest.raises(OutOfStep, match=r"is at message 1 of 4 bytes.*sends message 7 of 4 bytes"):
        far.sum(np.ones(1, "f4"))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda ring: ring.sum(np.ones(2, "f4")), lambda ring: ring.sum(np.ones(2, "i4"))),
        (lambda ring: ring.sum(np.ones(4, "f4")), lambda ring: ring.sum(np.ones(2, "f8"))),
        (lambda ring: ring.sum(np.ones(2, "f4")), lambda ring: ring.every(np.ones(2, "f4"))),
        (lambda ring: ring.every(np.ones((2, 3))), lambda ring: ring.every(np.ones((3, 2)))),
    ],
    ids=["dtype", "width", "sum and rows", "rows of other shapes"],
)
def test_messages_of_the_same_size_and_of_another_kind_are_an_error(circle, one, other):
    found = each(circle(2), lambda rank, ring: error_of(lambda: (one, other)[rank](ring)))
    assert all(isinstance(error, OutOfStep | RingBroken) for error in found)
    assert any("other numbers" in str(error) for error in found)


def test_what_is_broken_off_in_the_middle_ends_the_ring(circle):
    """What is left of a message would be taken for the next one."""
    near, far = circle(2)
    near._wait = Interrupted.now
    with pytest.raises(Interrupted):
        near.sum(np.ones(1_000_000, "f4"))
    with pytest.raises(RingBroken):
        near.sum(np.ones(1, "f4"))
    with pytest.raises(RingBroken):
        far.sum(np.ones(1_000_000, "f4"))


class Interrupted(Exception):
    @classmethod
    def now(cls, *_):
        raise cls


def test_two_threads_cannot_train_at_the_same_time(circle):
    near, _ = circle(2)
    with near._busy, pytest.raises(OutOfStep, match="two threads"):
        near.sum(np.ones(1, "f4"))


def test_numbers_that_are_none_have_the_same_bits_everywhere(circle):
    """A checksum of parameters would take others for a difference."""
    own = [np.array([0x7FC00000], "u4").view("f4"), np.array([0xFFC00001], "u4").view("f4")]
    totals = each(circle(2), lambda rank, ring: ring.sum(own[rank]).tobytes())
    assert totals[0] == totals[1]


def test_what_is_kept_of_trainings_that_are_over_is_little(circle):
    """Such as those of a sweep, each of another size."""
    rings = circle(2)
    each(rings, lambda rank, ring: [ring.sum(np.ones(10_000 + i, "f4"))[0] for i in range(50)])
    assert len(rings[0]._rooms) == ROOMS


@pytest.mark.parametrize("begun", [False, True], ids=["between sums", "within a sum"])
def test_a_machine_that_is_gone_ends_the_sum_of_the_others(circle, begun):
    near, far = circle(2)
    if begun:
        near._onward.setblocking(True)
        near._onward.sendall(HEAD.pack(1, 4_000_000, _kind("sum", np.ones(1, "f4"))) + bytes(100))
    timer = threading.Timer(0.2, lambda: [c.shutdown(socket.SHUT_RDWR) for c in (near._onward, near._behind)])
    timer.start()
    with pytest.raises(RingBroken, match="has ended"):
        far.sum(np.ones(1_000_000, "f4"))
    timer.join()


def test_the_system_looks_for_a_machine_that_says_nothing(circle):
    near, _ = circle(2)
    assert near._behind.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    assert near._behind.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 1


def test_memory_stays_level(circle):
    rings = circle(2)

    def pages():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def sums(rank, ring, count):
        for _ in range(count):
            ring.sum(np.ones(3_000, "f4"))

    each(rings, lambda rank, ring: sums(rank, ring, 200))
    before = pages()
    each(rings, lambda rank, ring: sums(rank, ring, 2_000))
    assert pages() - before < 2_000_000
