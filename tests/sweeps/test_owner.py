import os
import subprocess
import sys
import time

from colonnade.sweeps import owner as owning
from colonnade.sweeps.owner import SweepOwner

# A sweep that starts something which inherits its lock, and waits for its end.
PROGRAM = """
import subprocess, sys, time
from pathlib import Path
from colonnade.sweeps.owner import SweepOwner
owner = SweepOwner(Path(sys.argv[1]))
child = subprocess.Popen(["sleep", "60"], pass_fds=(owner.descriptor,))
print(owner.name, child.pid, flush=True)
time.sleep(60)
"""


def test_alive_dying_dead_and_remote(tmp_path):
    with SweepOwner(tmp_path) as owner:
        assert owning.state(tmp_path, owner.name) == "alive"
        assert owning.known(tmp_path) == [owner.name]
    assert owning.state(tmp_path, owner.name) == "dead"
    owning.forget(tmp_path, owner.name)
    assert owning.state(tmp_path, owner.name) == "remote"


def test_a_killed_sweep_is_dead_when_all_that_it_started_is(tmp_path):
    sweep = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    with sweep:
        name, child = sweep.stdout.readline().split()
        assert owning.state(tmp_path, name) == "alive"
        sweep.kill()
        sweep.wait()
        assert owning.state(tmp_path, name) == "dying"
        os.kill(int(child), 9)
        deadline = time.monotonic() + 5
        while owning.state(tmp_path, name) != "dead":
            assert time.monotonic() < deadline
            time.sleep(0.01)
