"""A real Slurm on this machine: `srun` starts programs, and each finds the cluster that it is part of.

Three nodes, all of them this machine: one of its own name, where programs can train together, and `n1` and
`n2`, which nobody resolves, for tasks that only look.
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest
from fresh import QUIET, ROOT, run

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "scontrol", "squeue")
HOST = socket.gethostname().partition(".")[0]
CONFIGURATION = """
ClusterName=soak
SlurmctldHost={host}(127.0.0.1)
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
SlurmctldPort={ports[0]}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdLogFile={folder}/slurmd-%n.log
SlurmdSpoolDir={folder}/spool-%n
StateSaveLocation={folder}/state
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=2
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
NodeName={host} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=4
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=2
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[3]} CPUs=2
PartitionName=here Nodes={host} State=UP
PartitionName=two Nodes=n1,n2 Default=YES State=UP
"""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    """Start Slurm; the environment in which its commands find it."""
    missing = [name for name in PROGRAMS if not shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin")]
    if missing or os.geteuid() != 0:
        pytest.skip(
            f"needs Slurm: apt-get install slurm-wlm munge ({', '.join(missing)} not found)"
            if missing
            else "needs root"
        )
    folder = tmp_path_factory.mktemp("slurm")
    (folder / "state").mkdir()
    (folder / "key").write_bytes(os.urandom(1024))
    (folder / "key").chmod(0o400)
    listeners = [socket.create_server(("", 0)) for _ in range(4)]
    ports = [listener.getsockname()[1] for listener in listeners]
    for listener in listeners:
        listener.close()
    text = CONFIGURATION.format(host=HOST, folder=folder, ports=ports)
    (folder / "slurm.conf").write_text(text)
    environment = {**os.environ, **QUIET, "SLURM_CONF": str(folder / "slurm.conf")}
    environment["PATH"] += ":/usr/sbin"
    files = {
        "socket": "munge.socket",
        "pid-file": "munged.pid",
        "log-file": "munged.log",
        "seed-file": "seed",
    }
    munge = [f"--{option}={folder / name}" for option, name in files.items()]
    commands = [
        ["munged", "--foreground", "--force", f"--key-file={folder / 'key'}", *munge],
        ["slurmctld", "-D"],
        *(["slurmd", "-D", "-N", node] for node in (HOST, "n1", "n2")),
    ]
    daemons = []
    with (folder / "daemons.log").open("wb") as log:
        try:
            for command in commands:
                daemons.append(subprocess.Popen(command, stdout=log, stderr=log, env=environment, cwd=folder))
                time.sleep(0.5)
            _wait(lambda: _idle(environment) == 3, folder)
            yield environment
        finally:
            for daemon in reversed(daemons):
                daemon.send_signal(signal.SIGTERM)
            for daemon in daemons:
                try:
                    daemon.wait(timeout=30)
                except subprocess.TimeoutExpired:  # a slurmd may wait for a step that has long ended
                    daemon.kill()
                    daemon.wait()


def _idle(environment):
    done = subprocess.run(
        ["sinfo", "-h", "-N", "-t", "idle"], capture_output=True, text=True, env=environment
    )
    return len(done.stdout.splitlines())


def _wait(until, folder, seconds=60):
    deadline = time.monotonic() + seconds
    while not until():
        assert time.monotonic() < deadline, (folder / "daemons.log").read_text()[-3000:]
        time.sleep(0.2)


LOOKS = """
import dataclasses, json, os
from colonnade.describe.clusters.cluster import Cluster
cluster = Cluster.from_environment(os.environ)
found = None if cluster is None else dataclasses.asdict(cluster)
print(json.dumps([int(os.environ["SLURM_PROCID"]), found]))
"""


def srun(environment, *options, program=LOOKS):
    return subprocess.run(
        ["srun", "--chdir", str(ROOT), *options, sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment,
    )


def looked(done):
    assert done.returncode == 0, done.stderr
    return sorted(json.loads(line) for line in done.stdout.splitlines())


def test_uneven_tasks_find_one_cluster(slurm):
    """Three tasks on two nodes: two and one."""
    seen = looked(srun(slurm, "-p", "two", "-n", "3"))
    assert [proc for proc, _ in seen] == [0, 1, 2]
    assert [cluster["rank"] for _, cluster in seen] == [0, 1, 2]
    (addresses,) = {tuple(cluster["addresses"]) for _, cluster in seen}
    assert [address.partition(":")[0] for address in addresses] == ["n1", "n1", "n2"]
    assert {tuple(cluster["names"]) for _, cluster in seen} == {("n1/0", "n1/1", "n2")}
    assert {(cluster["source"], cluster["generation"]) for _, cluster in seen} == {("Slurm", 0)}


@pytest.mark.parametrize("distribution", ["cyclic", "plane=2", "arbitrary"])
def test_however_tasks_are_dealt_out_each_has_a_rank_of_its_own(slurm, distribution):
    options = ["-n", "4", "-m", distribution]
    if distribution == "arbitrary":
        options += ["-w", "n2,n1,n1,n2"]
    seen = looked(srun(slurm, "-p", "two", *options))
    assert sorted(cluster["rank"] for _, cluster in seen) == [0, 1, 2, 3]
    assert len({tuple(cluster["addresses"]) for _, cluster in seen}) == 1


def test_one_task_is_a_program_alone(slurm):
    assert looked(srun(slurm, "-n", "1")) == [[0, None]]


def test_what_was_taken_away_is_named(slurm):
    program = "import os; del os.environ['SLURM_STEP_NODELIST']\n" + LOOKS
    done = srun(slurm, "-n", "2", program=program)
    assert done.returncode != 0
    assert "SLURM_STEP_NODELIST=None: is missing" in done.stderr


def test_two_tasks_train_as_one_machine_with_two_devices(slurm, tmp_path):
    """Sums are made in another order; float64, 40 steps."""
    program = [str(ROOT / "tests" / "machine_training.py")]
    command = ["srun", "-p", "here", "-n", "2", "--chdir", str(ROOT), sys.executable, *program]
    together = subprocess.run(
        [*command, str(tmp_path / "two"), "40"],
        capture_output=True,
        text=True,
        timeout=240,
        env={**slurm, "COLONNADE_PRIVATE_NETWORK": "1"},
    )
    assert together.returncode == 0, together.stderr[-4000:]
    alone = run([sys.executable, *program, str(tmp_path / "one"), "40", "2"])
    assert alone.returncode == 0, alone.stderr[-4000:]
    first, second, whole = final(together.stdout) + final(alone.stdout)
    assert first == second
    np.testing.assert_allclose(first, whole, rtol=1e-9, atol=1e-11)
    refused = subprocess.run([*command, str(tmp_path / "x"), "40"], capture_output=True, text=True, env=slurm)
    assert refused.returncode != 0
    assert "COLONNADE_PRIVATE_NETWORK=None" in refused.stderr


def final(out):
    lines = [line.split()[1:] for line in out.splitlines() if line.startswith("final ")]
    return [[float.fromhex(value) for value in values] for values in lines]


def job_file():
    """The one that the documentation shows."""
    (text,) = re.findall(
        r"```sh\n(#!/bin/bash\n#SBATCH.*?)```", (ROOT / "docs" / "machines.md").read_text(), re.S
    )
    return text


STOPS_ONCE = """
import os, sys
from pathlib import Path
from colonnade.describe.clusters.cluster import Cluster
cluster = Cluster.from_environment(os.environ)
cluster.check_private(os.environ)
with Path(sys.argv[1]).open("a") as file:
    print(cluster.generation, cluster.rank, cluster.size, file=file)
sys.exit(75 if cluster.generation == 0 else 0)
"""


def test_the_job_file_of_the_documentation_starts_again_after_75(slurm, tmp_path):
    log = tmp_path / "log"
    (tmp_path / "train.py").write_text(STOPS_ONCE)
    text = job_file().replace(
        "--nodes=4 --ntasks-per-node=1 --gpus-per-node=8", "--nodes=2 --ntasks-per-node=1"
    )
    text = text.replace("python train.py", f"{sys.executable} {tmp_path}/train.py {log}")
    assert "scontrol requeue" in text
    (tmp_path / "job.sh").write_text(text)
    command = ["sbatch", "--parsable", "-p", "two", "-o", str(tmp_path / "out"), str(tmp_path / "job.sh")]
    done = subprocess.run(command, capture_output=True, text=True, env=slurm, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    deadline = time.monotonic() + 180
    while _state(slurm, done.stdout.strip()) not in ("COMPLETED", "FAILED") and time.monotonic() < deadline:
        time.sleep(0.5)
    assert _state(slurm, done.stdout.strip()) == "COMPLETED", (tmp_path / "out").read_text()
    assert sorted(log.read_text().splitlines()) == ["0 0 2", "0 1 2", "1 0 2", "1 1 2"]


def _state(environment, job):
    done = subprocess.run(["scontrol", "show", "job", job], capture_output=True, text=True, env=environment)
    (state,) = re.findall(r"JobState=(\w+)", done.stdout)
    return state
