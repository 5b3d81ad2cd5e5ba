import pytest

from colonnade.describe.clusters.address import amiss, is_loopback, joined, parted, repeated


@pytest.mark.parametrize(
    "address", ["a:1", "n01.cluster.local:65535", "10.0.0.1:2222", "[fd00::1]:2222", "_x-y:80"]
)
def test_good_addresses_come_apart_and_together(address):
    assert list(amiss("address", address)) == []
    assert joined(*parted(address)) == address


@pytest.mark.parametrize(
    ("address", "rule"),
    [
        ("a", "has no port"),
        ("10.0.0.1", "has no port"),
        ("fd00::1", "has no port"),
        ("a:", "must be an address"),
        ("a:0", "no port"),
        ("a:70000", "no port"),
        ("a:http", "must be an address"),
        (":2222", "no name of a host"),
        ("-oProxyCommand=x:22", "no name of a host"),
        ("a b:22", "no name of a host"),
        ("a;reboot:22", "no name of a host"),
        ("$(reboot):22", "no name of a host"),
        ("[a]:22", "IPv6"),
        ("0.0.0.0:22", "could reach"),
        ("[::]:22", "could reach"),
        ("grpc://a:22", "must be an address"),
        (2222, "must be an address"),
        (None, "must be an address"),
        (["a:1"], "must be an address"),
        ("a:٣", "must be an address"),
        ("a:22\n", "must be an address"),
    ],
)
def test_bad_addresses_are_named(address, rule):
    (problem,) = amiss("addresses[1]", address)
    assert rule in problem.rule
    assert str(problem).startswith("addresses[1]=")


def test_two_tasks_at_one_address():
    (problem,) = repeated({"x": "a:1", "y": "b:1", "z": "a:1", "no text": 3})
    assert (problem.argument, problem.value) == ("z", "a:1")
    assert "x" in problem.rule


@pytest.mark.parametrize(
    ("host", "is_one"),
    [("localhost", True), ("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("10.0.0.1", False),
     ("localhost.example.org", False), ("a", False), ("128.0.0.1", False), ("0.0.0.0", False)],
)  # fmt: skip
def test_loopback(host, is_one):
    assert is_loopback(host) == is_one
