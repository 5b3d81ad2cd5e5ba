import socket

import pytest

from colonnade.describe.clusters.slurm_step import PORTS
from colonnade.fleet import ports


def test_ports_are_free_different_and_of_the_range_that_is_fenced():
    found = ports.free(20)
    assert len(set(found)) == 20
    assert set(found) <= set(PORTS)
    for port in found:
        with socket.socket() as server:
            server.bind(("", port))
    assert ports.free(0) == []


@pytest.mark.parametrize("host", ["127.0.0.1", ""])
def test_a_port_in_use_is_not_chosen(monkeypatch, host):
    with socket.socket() as server:
        server.bind((host, 0))
        server.listen()
        used = server.getsockname()[1]
        monkeypatch.setattr(ports, "PORTS", range(used, used + 1))
        with pytest.raises(OSError, match="only 0 are free"):
            ports.free()
