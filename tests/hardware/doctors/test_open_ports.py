import json
import os
import socket
import subprocess
import sys

import pytest

from colonnade.hardware.doctors.open_ports import OpenPort, open_ports, reachable

# A server of TensorFlow, told one address; and beside it one that speaks HTTP/1, as TensorBoard does.
SERVER = """
import http.server, socket, threading
import tensorflow as tf
with socket.socket() as free:
    free.bind(("", 0))
    port = free.getsockname()[1]
server = tf.distribute.Server({"worker": [f"localhost:{port}"]}, job_name="worker", task_index=0)
other = http.server.HTTPServer(("", 0), http.server.BaseHTTPRequestHandler)
threading.Thread(target=other.serve_forever, daemon=True).start()
print(port, other.server_address[1], flush=True)
input()
"""


@pytest.fixture(scope="module")
def served():
    """A process with such servers; its two ports."""
    config = {"cluster": {"worker": ["10.0.0.1:1", "10.0.0.2:1"]}, "task": {"type": "worker", "index": 0}}
    environment = {"TF_CONFIG": json.dumps(config), "TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "-1"}
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", SERVER], stdin=pipe, stdout=pipe, text=True, env={**os.environ, **environment}
    ) as process:
        yield process, *map(int, process.stdout.readline().split())
        process.kill()


def test_a_server_that_was_told_localhost_is_found_open(served):
    process, port, other = served
    found, _ = open_ports()
    (ours,) = (one for one in found if one.pid == process.pid)
    assert ours.port == port != other
    assert ours.hosts == ("10.0.0.1", "10.0.0.2")
    assert sys.executable in ours.command
    finding = reachable(found, False)
    assert finding.state == "note"
    assert f"port {port} of process {process.pid}" in finding.found
    assert "ip saddr '{ 10.0.0.1, 10.0.0.2 }'" in finding.remedy
    assert str(port) in finding.remedy


def test_ports_of_other_programs_are_none_of_its_business():
    with socket.create_server(("", 0)):
        found, _ = open_ports()
        assert not any(one.pid == os.getpid() for one in found)


def test_no_open_port():
    assert reachable((), False).state == "good"
    assert "other users" in reachable((), True).found


def test_without_a_known_cluster_only_this_machine_is_let_in():
    finding = reachable([OpenPort(5, 6, "python train.py", ("localhost",)), OpenPort(7, 6, "x")], False)
    assert "saddr" not in finding.remedy
    assert "tcp dport '{ 5, 7 }' drop" in finding.remedy
