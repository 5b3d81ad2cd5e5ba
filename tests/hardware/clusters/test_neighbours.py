"""Machines that make a ring, in threads of one process; and who else comes to their doors."""

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from machine_group import free_ports

from colonnade.describe.clusters.address import parted
from colonnade.describe.clusters.cluster import Cluster
from colonnade.hardware.clusters import neighbours
from colonnade.hardware.clusters.neighbours import ring_of
from colonnade.hardware.clusters.rendezvous import MissedMeeting


def clusters(size):
    addresses = tuple(f"127.0.0.1:{port}" for port in free_ports(size))
    return [Cluster(addresses, rank, tuple("abcd")[:size]) for rank in range(size)]


OPEN = []  # rings of the test at hand


@pytest.fixture(autouse=True)
def closed():
    yield
    while OPEN:
        OPEN.pop().close()


def rings_of(machines, words=("word",) * 4, seconds=5.0, late=()):
    """The ring of each machine, or why it has none."""

    def one(cluster):
        if cluster.rank in late:
            time.sleep(0.5)
        try:
            ring = ring_of(cluster, words[cluster.rank], seconds)
        except MissedMeeting as error:
            return error
        OPEN.append(ring)
        return ring

    with ThreadPoolExecutor(len(machines)) as threads:
        return list(threads.map(one, machines))


def assert_they_sum(rings):
    with ThreadPoolExecutor(len(rings)) as threads:
        totals = list(threads.map(lambda ring: ring.sum(np.ones(3)).tolist(), rings))
    assert totals == [[float(len(rings))] * 3] * len(rings)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_all_machines_are_in_one_ring(size):
    assert_they_sum(rings_of(clusters(size)))


@pytest.mark.parametrize("late", [(0,), (1, 2)])
def test_who_comes_late_is_waited_for(late):
    assert_they_sum(rings_of(clusters(3), late=late))


def test_no_door_stays_open():
    machines = clusters(2)
    rings = rings_of(machines)
    for address in machines[0].addresses:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(parted(address), 1.0)
    assert_they_sum(rings)


@pytest.mark.parametrize(
    "says", [b"", b"GET / HTTP/1.1\r\n\r\n", bytes(100)], ids=["nothing", "http", "zeros"]
)
def test_strangers_who_knock_are_not_let_in(says):
    machines = clusters(2)
    places = [parted(address) for address in machines[0].addresses]
    over = threading.Event()

    def knock():
        while not over.is_set():
            for place in places:
                try:
                    with socket.create_connection(place, 0.2) as stranger:
                        stranger.sendall(says)
                except OSError:
                    time.sleep(0.01)

    stranger = threading.Thread(target=knock)
    stranger.start()
    try:
        rings = rings_of(machines, late=(1,))
    finally:
        over.set()
        stranger.join()
    assert_they_sum(rings)


def test_who_knows_another_word_is_no_neighbour():
    """As a machine of an earlier start, which was cut off and comes back."""
    for missed in rings_of(clusters(2), ("one", "another"), seconds=0.5):
        assert isinstance(missed, MissedMeeting)


def test_another_program_at_the_next_machines_port_is_not_taken_for_it():
    """It answers with something, and the machine is there a moment later."""
    machines = clusters(2)
    other = socket.create_server(parted(machines[0].addresses[1]))
    answered = threading.Event()

    def answer():
        connection, _ = other.accept()
        other.close()
        connection.sendall(bytes(64))
        answered.set()
        connection.close()

    threading.Thread(target=answer).start()
    assert_they_sum(rings_of(machines, late=(1,)))
    assert answered.is_set()


def test_a_machine_that_comes_to_another_than_the_next_one_is_not_let_in():
    """A name may lead to the wrong machine. Rings of others, or in another order, would add up something."""
    machines = clusters(3)
    one, two, three = machines[0].addresses
    seen = [(one, three, two), (three, two, one), (two, one, three)]  # 0 goes to 2, 2 to 1, 1 to 0
    wrong = [Cluster(addresses, rank, tuple("abc")) for rank, addresses in enumerate(seen)]
    assert all(isinstance(missed, MissedMeeting) for missed in rings_of(wrong, seconds=1.0))


def test_strangers_who_stay_and_say_nothing_hold_nobody_up():
    machines = clusters(2)
    places = [parted(address) for address in machines[0].addresses]
    silent, over = [], threading.Event()

    def knock():
        while not over.is_set() and len(silent) < 40:
            try:
                silent.append(socket.create_connection(places[len(silent) % 2], 0.2))
            except OSError:
                time.sleep(0.01)

    stranger = threading.Thread(target=knock)
    stranger.start()
    try:
        begin = time.monotonic()
        rings = rings_of(machines, late=(1,))
        assert time.monotonic() - begin < 3.0
    finally:
        over.set()
        stranger.join()
        for connection in silent:
            connection.close()
    assert silent
    assert_they_sum(rings)


def test_a_knock_may_come_in_pieces():
    cluster = clusters(2)[0]
    knock = neighbours._proof("word", "1 knocks at 0")
    with socket.create_server(parted(cluster.addresses[0])) as door:
        behind = neighbours._Behind(cluster, "word", door)
        with socket.create_connection(parted(cluster.addresses[0])) as other:
            for piece in (knock[:10], knock[10:]):
                behind.look()
                assert behind.connection is None
                other.sendall(piece)
                time.sleep(0.05)
            behind.look()
            assert other.recv(32) == neighbours._proof("word", "0 lets 1 in")
            behind.send_away(all_of_them=True)


def test_a_proof_does_not_tell_the_word():
    assert b"word" not in neighbours._proof("word", "1 knocks at 0")
    assert len(neighbours._proof("word", "1 knocks at 0")) == 32


def test_who_is_missing_is_named_with_its_address():
    machines = clusters(3)
    first, second = rings_of(machines[:2], seconds=0.5)
    assert machines[0].addresses[0] in str(first)
    assert "'c': did not come to the machine after it" in str(first)
    assert "'c': cannot be reached from b" in str(second)
    assert f"Let every machine reach the next one; here, {machines[0].addresses[2]}" in str(second)
