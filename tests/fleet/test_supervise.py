"""A program under `colonnade run`: its signals, its exit code and its end are those of the launcher."""

import os
import signal
import sys
import time

import psutil
import pytest
from families import long
from fresh import COMMAND, run
from jobs import Job

from colonnade.fleet.lease import claims


def gone(*pids):
    """Wait until no process of these is left."""
    deadline = time.monotonic() + 10
    while any(psutil.pid_exists(pid) for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


@pytest.mark.parametrize(
    ("program", "code"),
    [("raise SystemExit(7)", 7), ("import os; os.kill(os.getpid(), 9)", 137), ("", 0)],
)
def test_the_exit_code_is_the_programs(tmp_path, program, code):
    assert Job(tmp_path, program).end()[0] == code


def test_what_cannot_be_executed(tmp_path):
    broken = tmp_path / "broken"
    broken.write_text("no program")
    broken.chmod(0o755)
    done = run([COMMAND, "run", "--virtual", "1", "--", str(broken)], COLONNADE_LEASES=str(tmp_path / "l"))
    assert done.returncode == 2
    assert "Exec format error" in done.stderr
    assert "Traceback" not in done.stderr


HEARS = """
import signal, sys
def heard(number, _):
    print(signal.Signals(number).name)
    if number == signal.SIGTERM:
        sys.exit(75)
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGUSR1, signal.SIGCONT):
    signal.signal(number, heard)
print("ready")
while True:
    signal.pause()
"""


def test_signals_are_passed_on(tmp_path):
    job = Job(tmp_path, HEARS, "--retries", "3")
    assert job.line() == "ready"
    for name in ("SIGHUP", "SIGINT", "SIGUSR1"):
        job.process.send_signal(getattr(signal, name))
        assert job.line() == name
    job.process.send_signal(signal.SIGTERM)
    assert job.end()[:2] == (75, ["SIGTERM"])  # and it was not started again


def test_stop_and_continue(tmp_path):
    job = Job(tmp_path, HEARS, process_group=0)  # as a shell starts it
    assert job.line() == "ready"
    launcher = psutil.Process(job.process.pid)
    (program,) = (p for p in launcher.children(recursive=True) if not p.children())
    job.process.send_signal(signal.SIGTSTP)
    while {launcher.status(), program.status()} != {psutil.STATUS_STOPPED}:
        time.sleep(0.01)
    job.process.send_signal(signal.SIGCONT)
    assert job.line() == "SIGCONT"
    job.process.send_signal(signal.SIGTERM)
    assert job.end()[0] == 75


def test_nobody_stops_where_no_shell_could_continue_them(tmp_path):
    """A process group without a parent in its session: the kernel does not stop it, so we do not either."""
    job = Job(tmp_path, HEARS, start_new_session=True)
    assert job.line() == "ready"
    for number, said in ((signal.SIGTSTP, None), (signal.SIGUSR1, "SIGUSR1")):
        job.process.send_signal(number)
        assert said is None or job.line() == said
    job.process.send_signal(signal.SIGTERM)
    assert job.end()[0] == 75


FAMILY = """
import os, subprocess, sys, time
child = subprocess.Popen(["sleep", "300"])
away = subprocess.Popen(["setsid", "sleep", "300"])
deaf = subprocess.Popen([sys.executable, "-c",
    "import signal, time; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); time.sleep(300)"],
    stdout=subprocess.PIPE)
deaf.stdout.readline()
orphan = subprocess.run(["sh", "-c", "sleep 300 >&- 2>&- & echo $!"], capture_output=True, text=True).stdout
print(os.getpid(), child.pid, away.pid, deaf.pid, orphan.strip())
sys.stdout.close()
if len(sys.argv) == 1:
    time.sleep(300)
"""


@pytest.mark.parametrize("victim", ["supervisor", *long("launcher")])
def test_no_orphan_when_killed(tmp_path, victim):
    job = Job(tmp_path, FAMILY)
    family = [int(pid) for pid in job.line().split()]
    assert len(family) == 5
    (supervisor,) = psutil.Process(job.process.pid).children()
    os.kill(job.process.pid if victim == "launcher" else supervisor.pid, signal.SIGKILL)
    assert gone(*family)
    assert job.end()[0] == (-9 if victim == "launcher" else 137)
    assert gone(supervisor.pid)
    assert claims(job.leases) == ()


def test_nothing_is_left_when_the_program_has_ended(tmp_path):
    job = Job(tmp_path, FAMILY.replace("len(sys.argv) == 1", "False"))
    family = [int(pid) for pid in job.line().split()]
    assert job.end()[0] == 0
    assert not any(psutil.pid_exists(pid) for pid in family)
    assert claims(job.leases) == ()


@pytest.mark.long
def test_the_lease_outlives_a_killed_launcher_as_long_as_the_program_does(tmp_path):
    job = Job(
        tmp_path, "import signal, time; signal.signal(15, signal.SIG_IGN); print('up'); time.sleep(300)"
    )
    assert job.line() == "up"
    job.process.kill()
    job.process.wait()
    time.sleep(0.2)
    (claim,) = claims(job.leases)  # it does not hear, and is killed only after a while
    assert claim.pid == job.process.pid
    job.end()
    deadline = time.monotonic() + 10
    while claims(job.leases):
        assert time.monotonic() < deadline
        time.sleep(0.05)


TERMINAL = """
import os, pty, sys
pid, terminal = pty.fork()
if pid == 0:
    os.execv(sys.argv[1], sys.argv[1:])
said = b""
while b"ready" not in said:
    said += os.read(terminal, 1000)
os.write(terminal, b"\\x03")
try:
    while data := os.read(terminal, 1000):
        said += data
except OSError:
    pass
print(said.count(b"interrupt"), os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def test_ctrl_c_reaches_the_program_once(tmp_path):
    program = """
import time
try:
    print("ready", flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    print("interrupt", flush=True)
    time.sleep(0.3)
    raise SystemExit(5)
"""
    command = [COMMAND, "run", "--virtual", "1", "--", sys.executable, "-c", program]
    done = run([sys.executable, "-c", TERMINAL, *command], COLONNADE_LEASES=str(tmp_path / "leases"))
    assert done.stdout.split() == ["1", "5"], done.stderr
