import shutil
import subprocess

import pytest

from colonnade.describe.clusters.fence import problem, rules


def test_the_hosts_are_let_in_and_the_others_are_not():
    commands = rules(["10.0.0.1", "10.0.0.2", "10.0.0.1", "fd00::3"], "2222, 2223")
    assert [command.removeprefix("nft add rule inet colonnade input ") for command in commands[2:]] == [
        "iif lo accept",
        "ip saddr '{ 10.0.0.1, 10.0.0.2 }' tcp dport '{ 2222, 2223 }' accept",
        "ip6 saddr '{ fd00::3 }' tcp dport '{ 2222, 2223 }' accept",
        "tcp dport '{ 2222, 2223 }' drop",
    ]
    assert not any("ip6 saddr" in command for command in rules(["a"], "1"))


def test_nftables_takes_the_rules():
    """In a network namespace of its own, which goes away with the shell."""
    script = " && ".join([*rules(["10.0.0.1", "fd00::3"], "2222, 12000-31999"), "nft list ruleset"])
    if not shutil.which("nft") or not shutil.which("unshare"):
        pytest.skip("nft or unshare is not installed")
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--net", "sh", "-c", script], capture_output=True, text=True
    )
    if done.returncode and ("unshare failed" in done.stderr or "Operation not permitted" in done.stderr):
        pytest.skip(f"no network namespace here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    assert "tcp dport { 2222, 12000-31999 } drop" in done.stdout


@pytest.mark.parametrize(
    ("hosts", "environ"),
    [
        (["127.0.0.1", "localhost", "::1"], {}),
        (["a", "b"], {"COLONNADE_PRIVATE_NETWORK": "1"}),
    ],
)
def test_ports_that_may_be_opened(hosts, environ):
    assert problem(hosts, "2222", environ) is None


@pytest.mark.parametrize("said", [None, "0", "", "yes"])
@pytest.mark.parametrize("hosts", [["a", "b"], ["127.0.0.1", "10.0.0.1"], ["localhost.example.org", "a"]])
def test_the_refusal_says_what_a_stranger_could_do_and_how_to_fence(hosts, said):
    environ = {} if said is None else {"COLONNADE_PRIVATE_NETWORK": said}
    found = problem(hosts, "2222", environ)
    assert (found.argument, found.value) == ("COLONNADE_PRIVATE_NETWORK", said)
    for words in (
        "all interfaces",
        "neither encrypted nor signed",
        "take a machine's place",
        "port 2222",
        *hosts,
    ):
        assert words in found.rule
    for words in ("WireGuard", "namespace", "--private-network", "docs/machines.md", *rules(hosts, "2222")):
        assert words in found.fix
