"""Programs that hang, crash or say nothing: what is told of them, and that nothing of them is left."""

import os
import signal
import sys
import time

import psutil
import pytest

from colonnade.hardware.probes import watchdog


@pytest.fixture
def program(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))

    def write(code):
        (tmp_path / "asked.py").write_text(code)
        return "asked"

    return write


def test_the_last_line_is_the_answer(program):
    answer = watchdog.ask(
        program("import sys; print('notes'); print('[1, \"' + sys.argv[1] + '\"]')"), "b", seconds=20
    )
    assert (answer.said, answer.trouble, answer.printed[0]) == ([1, "b"], "", "notes")


def test_what_a_library_says_behind_the_answer_is_passed_over(program):
    """NCCL writes its version when the program ends, without a look at Python's buffers."""
    code = "import atexit, os; print([1]); atexit.register(os.write, 1, b'NCCL version 2.21.5+cuda12.5\\n')"
    answer = watchdog.ask(program(f"import sys; {code}; sys.stdout.flush()"), seconds=20)
    assert (answer.said, answer.printed[-1]) == ([1], "NCCL version 2.21.5+cuda12.5")


@pytest.mark.parametrize(
    ("code", "trouble"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "died of SIGSEGV"),
        ("raise RuntimeError('spoilt')", "exit code 1"),
        ("print('no answer')", "ended without an answer"),
        ("", "ended without an answer"),
    ],
)
def test_trouble_is_told(program, code, trouble):
    answer = watchdog.ask(program(code), seconds=20)
    assert answer.trouble == trouble
    assert answer.words == ("RuntimeError: spoilt" if "raise" in code else "")


HANGS = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open(sys.argv[1], "w").write(f"{os.getpid()} {child.pid}")
time.sleep(600)
"""


def test_what_hangs_is_ended_with_all_it_started(program, tmp_path):
    answer = watchdog.ask(program(HANGS), str(tmp_path / "pids"), seconds=3)
    assert answer.trouble == "no answer within 3 s; it was ended"
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    deadline = time.monotonic() + 10
    while any(_runs(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(_runs(pid) for pid in pids)


def _runs(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_an_orphan_ends_itself(program):
    from fresh import run

    command = [sys.executable, "-m", "colonnade.hardware.probes.watchdog", "0.5"]
    done = run([*command, program("import threading; threading.Event().wait()")])
    assert done.returncode == -signal.SIGALRM
