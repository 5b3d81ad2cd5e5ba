import json
import os
import socket
import subprocess
import sys

from colonnade.fleet.lease import claims

SAYS = {"cards": 2, "memory": "0.5", "virtual": 2, "share": False, "command": ["a", "sweep"], "owner": 2}
PRINTED = "echo $A $COLONNADE_CARDS $COLONNADE_VIRTUAL"


def test_orders_and_answers(tmp_path):
    """As a sweep talks to it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    says = {**SAYS, "leases": str(tmp_path / "leases")}
    with ours, (tmp_path / "log").open("w+") as log:
        command = [
            sys.executable,
            "-m",
            "colonnade.sweeps.slots.keeper",
            str(theirs.fileno()),
            str(os.getpid()),
        ]
        with subprocess.Popen([*command, json.dumps(says)], pass_fds=(theirs.fileno(),)) as keeper:
            theirs.close()
            assert json.loads(ours.recv(1000)) == {"leased": ["virtual:0", "virtual:1"]}
            (claim,) = claims(tmp_path / "leases")
            assert (claim.command, claim.memory) == (("a", "sweep"), "0.5")
            order = {"run": ["sh", "-c", PRINTED], "environment": {"A": "1"}}
            socket.send_fds(ours, [json.dumps(order).encode()], [log.fileno()])
            assert json.loads(ours.recv(1000)) == {"ended": 0}
            ours.shutdown(socket.SHUT_WR)
            assert ours.recv(1000) == b""
        assert keeper.returncode == 0
        log.seek(0)
        assert log.read() == "1 virtual:0,virtual:1 2\n"
    assert claims(tmp_path / "leases") == ()
