"""Machines that come to the first one, and those that do not, in threads of one process."""

import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from machine_group import free_ports

from colonnade.describe.clusters.cluster import Cluster
from colonnade.errors import InvalidArgument
from colonnade.hardware.clusters import rendezvous
from colonnade.hardware.clusters.rendezvous import LONGEST, MessageSocket, MissedMeeting, gathered


def clusters(size, names=("a", "b", "c", "d"), **options):
    addresses = tuple(f"127.0.0.1:{port}" for port in free_ports(size))
    return [Cluster(addresses, rank, names[:size], **options) for rank in range(size)]


OPEN = []  # connections of the test at hand


@pytest.fixture(autouse=True)
def closed():
    yield
    while OPEN:
        OPEN.pop().close()


def all_of(machines, seconds=5.0):
    """What `gathered` gives each, or raises."""

    def one(cluster):
        try:
            links, everyone = gathered(cluster, {"said": cluster.name}, seconds)
        except InvalidArgument as error:
            return error
        OPEN.extend(links.values())
        return links, everyone

    with ThreadPoolExecutor(len(machines)) as threads:
        return list(threads.map(one, machines))


def test_all_know_what_each_said_and_are_connected_to_the_first():
    results = all_of(clusters(3))
    for _, everyone in results:
        assert [one["said"] for one in everyone] == ["a", "b", "c"]
        assert [one["rank"] for one in everyone] == [0, 1, 2]
    assert [sorted(links) for links, _ in results] == [[1, 2], [0], [0]]
    results[0][0][2].send({"word": 1})
    assert results[2][0][0].receive() == {"word": 1}


def test_a_system_answers_for_a_program_that_does_not_read():
    """As one that is stopped."""
    results = all_of(clusters(2))
    link = results[0][0][1]
    time.sleep(0.3)
    silent = link.unanswered
    assert 0.25 < silent < 5
    link.send({"beat": 1})
    time.sleep(0.1)  # an answer may take 40 ms
    assert link.unanswered < 0.25
    link.close()
    assert link.unanswered == 0


def test_the_port_is_free_again_for_the_next_door():
    machines = clusters(2)
    all_of(machines)
    host, port = machines[0].addresses[0].split(":")
    with socket.socket() as server:  # while the connections stay
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((host, int(port)))
        server.listen()
        assert server.getsockname() == (host, int(port))


def test_a_machine_that_does_not_come_is_named_on_all_that_are_there():
    begin = time.monotonic()
    results = all_of(clusters(3)[:2], seconds=0.5)
    assert time.monotonic() - begin < 5
    for error in results:
        assert isinstance(error, InvalidArgument)
        assert "c (127.0.0.1:" in str(error)
        assert "did not answer within 0.5 s" in str(error)


def test_a_first_machine_that_does_not_come_is_named():
    (error,) = all_of(clusters(2)[1:], seconds=0.3)
    assert "machine='a'" in str(error)
    assert "COLONNADE_JOIN_SECONDS" in str(error)


def test_two_programs_with_the_same_task_are_told():
    first, _ = clusters(2)
    wide = Cluster((*first.addresses, "127.0.0.1:1"), 0, ("a", "b", "c"))
    results = all_of([wide, *[Cluster(wide.addresses, 1, wide.names)] * 2], seconds=1.0)
    words = [str(error) for error in results]
    assert any("two programs have the same task" in word for word in words)


@pytest.mark.parametrize("order", [[1, 2], [2, 1]], ids=["at once", "behind the last one"])
def test_a_machine_that_died_meanwhile_comes_back(order):
    """As where a scheduler starts one of the programs again while the others still wait."""
    machines = clusters(3)
    with ThreadPoolExecutor(3) as threads:
        first = threads.submit(gathered, machines[0], {}, 10.0)
        assert _listens(machines[0])
        link = MessageSocket(socket.create_connection(_place(machines[0]), 5.0))
        link.send({"rank": 1, "size": 3, "generation": 0, "cluster": machines[0].digest})
        link.close()
        others = {}
        for rank in order:
            others[rank] = threads.submit(gathered, machines[rank], {}, 10.0)
            time.sleep(0.2)  # until it is taken in
        results = [one.result() for one in (first, others[1], others[2])]
    for links, everyone in results:
        OPEN.extend(links.values())
        assert [one["rank"] for one in everyone] == [0, 1, 2]
    results[0][0][1].send({"word": 1})
    assert results[1][0][0].receive() == {"word": 1}


def test_machines_of_another_cluster_at_the_same_port_find_their_own_later():
    """Two jobs came to one port: the second waits until the first has gone on."""
    one = clusters(2, identity="one")
    other = [Cluster(own.addresses, own.rank, own.names, identity="other") for own in one]
    with ThreadPoolExecutor(4) as threads:
        late = threads.submit(gathered, other[1], {}, 10.0)
        first = threads.submit(gathered, one[0], {}, 10.0)
        assert _listens(one[0])
        second = threads.submit(gathered, other[0], {}, 10.0)
        with pytest.raises(TimeoutError):
            late.result(timeout=0.5)
        results = [gathered(one[1], {}, 10.0), *(each.result() for each in (first, second, late))]
    for links, _ in results:
        OPEN.extend(links.values())
    met = [{said["cluster"] for said in everyone} for _, everyone in results]
    assert met == [{one[0].digest}, {one[0].digest}, {other[0].digest}, {other[0].digest}]


def test_a_port_that_stays_taken_asks_for_another_start():
    first, _ = clusters(2)
    with socket.create_server(_place(first)), pytest.raises(MissedMeeting, match="another program listens"):
        gathered(first, {}, 0.2)


def _place(cluster):
    host, port = cluster.addresses[0].split(":")
    return host, int(port)


def _listens(cluster, seconds=5.0):
    """Whether the first machine has opened its door, as the kernel's table says: nobody knocks."""
    wanted = f":{_place(cluster)[1]:04X}"
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        if any(row[1].endswith(wanted) and row[3] == "0A" for row in rows):
            return True
        time.sleep(0.01)
    return False


def test_a_machine_of_an_earlier_start_is_not_taken_in():
    first, _ = clusters(2, generation=3)
    late = Cluster(first.addresses, 1, first.names, generation=2)
    results = all_of([first, late], seconds=1.0)
    assert "is of start 2 of this cluster, the first one of 3" in str(results[1])
    assert "b (127.0.0.1:" in str(results[0])


def test_a_stranger_at_the_door_does_not_keep_the_others_out():
    machines = clusters(2)
    host, port = machines[0].addresses[0].split(":")

    def knock():
        time.sleep(0.1)
        for text in (b"GET / HTTP/1.1\r\n\r\n", (LONGEST + 1).to_bytes(8, "big"), b"\0" * 8):
            with socket.create_connection((host, int(port))) as stranger:
                stranger.sendall(text)

    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(gathered, machines[0], {}, 5.0)
        threads.submit(knock).result()
        links, _ = gathered(machines[1], {}, 5.0)
        OPEN.extend([*links.values(), *first.result()[0].values()])
        assert sorted(first.result()[0]) == [1]


def test_an_address_that_is_not_of_this_machine_is_refused():
    cluster = Cluster(("192.0.2.1:2222", "192.0.2.2:2222"), 0)
    with pytest.raises(InvalidArgument, match="cannot be listened at"):
        gathered(cluster, {}, 0.2)


@pytest.fixture
def names(monkeypatch):
    """What a name means: to the thread of the first machine, and to all others."""
    resolve, meanings = socket.getaddrinfo, {}

    def told(host, *args, **options):
        if host not in meanings:
            return resolve(host, *args, **options)
        to_first, to_others = meanings[host]
        meant = to_first if threading.current_thread().name == "first" else to_others
        if callable(meant):
            meant = meant()
        return resolve(meant, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", told)
    return meanings


def met(first, other, seconds=3.0):
    """What the first machine and another find: what each said, or what is wrong."""
    found = {}

    def one(name, cluster):
        try:
            links, found[name] = gathered(cluster, {"said": name}, seconds)
            OPEN.extend(links.values())
        except InvalidArgument as error:
            found[name] = error

    threads = [
        threading.Thread(target=one, args=pair, name=pair[0]) for pair in [("first", first), ("other", other)]
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def named(port, **options):
    addresses = (f"first.example:{port}", f"other.example:{port}")
    return [Cluster(addresses, rank, ("a", "b"), **options) for rank in range(2)]


@pytest.mark.parametrize("own", ["127.0.1.1", "::1"], ids=["of Debian", "of another family"])
def test_a_name_that_means_something_else_to_the_first_machine_itself(names, own):
    """Debian's installer writes `127.0.1.1 name` into /etc/hosts: at that address nobody else can knock."""
    if ":" in own and not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    names["first.example"] = own, "127.0.0.1"
    found = met(*named(*free_ports(1)))
    assert [[one["said"] for one in found[name]] for name in ("first", "other")] == [["first", "other"]] * 2


def test_a_training_on_loopback_is_listened_for_on_loopback():
    first, _ = clusters(2)
    with rendezvous.door_of(first, 0, rendezvous.Patience(0.0, 0.0)) as door:
        assert door.getsockname() == _place(first)


def test_a_name_that_comes_into_dns_a_moment_later_is_waited_for(names):
    """As that of a pod: a headless service names it when it is ready."""
    asked = []

    def soon():
        asked.append(1)
        if len(asked) < 3:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return "127.0.0.1"

    names["first.example"] = soon, "127.0.0.1"
    found = met(*named(*free_ports(1)))
    assert [one["said"] for one in found["first"]] == ["first", "other"]


def test_a_name_that_stays_unknown_asks_for_another_start(names):
    def never():
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    names["first.example"] = never, never
    for error in met(*named(*free_ports(1)), seconds=0.5).values():
        assert isinstance(error, MissedMeeting)
        assert "first.example" in str(error)
    with pytest.raises(MissedMeeting, match="its name is not known here"):
        gathered(named(1)[0], {}, 0.0)


def test_who_is_waited_for_is_said_soon_on_all_that_are_there(monkeypatch, capfd):
    monkeypatch.setattr(rendezvous, "TOLD", 0.3)
    monkeypatch.setattr(rendezvous, "BREATH", 0.2)
    machines = clusters(3)
    with ThreadPoolExecutor(3) as threads:
        waiting = [threads.submit(gathered, machine, {}, 10.0) for machine in machines[:2]]
        said, deadline = "", time.monotonic() + 5
        while said.count("did not come yet") < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
            said += capfd.readouterr().err
        for one in [*waiting, threads.submit(gathered, machines[2], {}, 10.0)]:
            OPEN.extend(one.result()[0].values())
    lines = said.splitlines()
    assert len(lines) == 2
    for line in lines:
        assert line.startswith("colonnade: c (127.0.0.1:")
        assert "waiting for up to 10 s in all (COLONNADE_JOIN_SECONDS)" in line


def test_a_first_machine_that_is_waited_for_is_said_soon(monkeypatch, capfd):
    monkeypatch.setattr(rendezvous, "TOLD", 0.2)
    all_of(clusters(2)[1:], seconds=0.6)
    said = capfd.readouterr().err.splitlines()
    assert len(said) == 1
    assert "does not answer yet (Connection refused)" in said[0]


def test_messages_are_json_whatever_their_length():
    one, other = map(MessageSocket, _pair())
    long = {"numbers": list(range(100_000))}
    thread = threading.Thread(target=one.send, args=(long,))
    thread.start()
    assert other.receive() == json.loads(json.dumps(long))
    thread.join()
    one.close()
    assert other.receive() is None
    other.close()


def test_a_message_that_is_not_taken_in_time_ends_the_connection(monkeypatch):
    """Of what was sent of it the other end would make another message."""
    monkeypatch.setattr(rendezvous, "PATIENCE", 1.0)
    one, other = map(MessageSocket, _pair())
    with pytest.raises(OSError, match="unavailable"):
        one.send({"numbers": "7" * 2**25})
    with pytest.raises(OSError):  # noqa: PT011 - the connection is closed, however the system says it
        one.send({"word": 1})
    assert other.receive() is None
    other.close()


def _pair():
    """Two ends of a TCP connection."""
    with socket.create_server(("127.0.0.1", 0)) as door:
        one = socket.create_connection(door.getsockname())
        other, _ = door.accept()
    return one, other
