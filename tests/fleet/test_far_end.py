"""The launcher's end on a machine, spoken to as a launcher speaks to it."""

import json
import subprocess
import sys
import time

import psutil

from colonnade import __version__
from colonnade.fleet import remote_shell
from colonnade.fleet.lease import claims
from colonnade.fleet.wire import parted, told


class FarEnd:
    def __init__(self, program, command=None, directory="/", lease=None):
        code = [sys.executable, "-c", program]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command or remote_shell.here(), stdin=pipe, stdout=pipe, stderr=pipe)
        self.tell({"directory": directory, "command": code, "environment": {"A": "1"}, "lease": lease})

    def tell(self, message):
        self.process.stdin.write(told(message))
        self.process.stdin.flush()

    def hear(self):
        text, message = parted(self.process.stdout.readline().removesuffix(b"\n"))
        return message if message is not None else text

    def start(self):
        assert self.hear() == {"hello": __version__}
        self.tell({"prepare": True})
        assert self.hear()["port"] > 0
        self.tell({"start": {"B": "2"}})

    def end(self):
        out, errors = self.process.communicate(timeout=20)
        return self.process.returncode, out, errors.decode()


def test_a_program_from_its_start_to_its_end():
    far = FarEnd("import os, sys; print(os.environ['A'] + os.environ['B'], end=''); sys.exit(255)")
    far.start()
    assert far.process.wait(timeout=20) == 255
    _, out, _ = far.end()
    assert parted(out.removesuffix(b"\n")) == ("12", {"ended": 255})  # which a lost connection does not say


def test_a_folder_that_is_not_there():
    far = FarEnd("", directory="/not/there")
    assert far.hear() == {"refused": "the directory /not/there is not there (No such file or directory)"}
    assert far.hear() == {"ended": 2}
    assert far.end()[0] == 2


SLEEPS = "import os, time; print(os.getpid(), flush=True); time.sleep(100)"


def test_the_end_of_the_launcher_is_the_end_of_the_program():
    far = FarEnd(SLEEPS)
    far.start()
    pid = int(far.hear())
    code, out, errors = far.end()  # which closes its input
    assert code == 137, errors
    assert json.loads(out.partition(b" ")[2]) == {"ended": 137}
    assert not psutil.pid_exists(pid)


def test_the_end_of_the_launcher_while_cards_are_waited_for(tmp_path):
    options = ["--virtual", "1", "--leases", str(tmp_path), "--", "sh", "-c", "echo; exec sleep 100"]
    holder = subprocess.Popen([sys.executable, "-m", "colonnade", "run", *options], stdout=subprocess.PIPE)
    holder.stdout.readline()
    far = FarEnd(SLEEPS, lease={"cards": 1, "virtual": 1, "directory": str(tmp_path)})
    assert "hello" in far.hear()
    far.tell({"prepare": True})
    assert b"waiting for 1 of 1 card" in far.process.stderr.readline()
    assert far.end()[0] == 137
    assert len(claims(tmp_path)) == 1
    holder.terminate()
    holder.communicate()


def test_a_launcher_that_says_nothing_for_long_is_taken_for_dead():
    quick = "from colonnade.fleet import far_end; far_end.SILENCE = 1; far_end.main()"
    far = FarEnd(SLEEPS, [sys.executable, "-c", quick])
    far.start()
    pid = int(far.hear())
    begun = time.monotonic()
    while time.monotonic() < begun + 1.5:  # longer than that, with signs of life
        far.process.stdin.write(b"\n")
        far.process.stdin.flush()
        time.sleep(0.1)
    assert psutil.pid_exists(pid)
    assert far.process.wait(timeout=10) == 137
    assert not psutil.pid_exists(pid)
    far.end()


def test_the_watch_killed_is_the_end_of_the_program():
    far = FarEnd(SLEEPS)
    far.start()
    int(far.hear())
    below = psutil.Process(far.process.pid).children(recursive=True)
    assert len(below) == 3
    far.process.kill()
    _, alive = psutil.wait_procs(below, timeout=10)
    assert alive == []
    far.end()
