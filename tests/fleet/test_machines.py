"""`colonnade run --machines` and `--local` as a user runs them, with a stand-in for ssh."""

import ast
import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
from fake_ssh import install
from fresh import COMMAND, QUIET, run

from colonnade.errors import InvalidArgument
from colonnade.fleet import machines, remote_shell, rounds
from colonnade.fleet.lease import claims

WHO = """
import json, os, sys, time
me = json.loads(os.environ["TF_CONFIG"])
rank, size = me["task"]["index"], len(me["cluster"]["worker"])
generation, name = int(os.environ["COLONNADE_GENERATION"]), os.environ["COLONNADE_MACHINES"].split(",")[rank]
"""


class Launched:
    """A launcher in a folder of its own, with the stand-in for ssh."""

    def __init__(self, folder, *options, program, arguments=(), **environment):
        inside = {
            **os.environ,
            **QUIET,
            **install(folder / "ssh"),
            "COLONNADE_LEASES": str(folder / "leases"),
        }
        command = [COMMAND, "run", *options, "--", sys.executable, "-c", WHO + program, *arguments]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=inside | environment, cwd=folder
        )

    def lines(self, count):
        return sorted(self.process.stdout.readline().rstrip("\n") for _ in range(count))

    def end(self):
        out, errors = self.process.communicate(timeout=60)
        return self.process.returncode, sorted(out.splitlines()), errors


def gone(pids, seconds=10):
    deadline = time.monotonic() + seconds
    while any(map(psutil.pid_exists, pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not any(map(psutil.pid_exists, pids))


SAYS = """
names = ("COLONNADE_MACHINES", "COLONNADE_PRIVATE_NETWORK", "SECRET", "TF_SETTING", "CUDA_VISIBLE_DEVICES")
heard = [os.environ.get(name) for name in names]
print(json.dumps([name, rank, generation, sys.argv[1:], os.getcwd(), sys.stdin.read(), heard]))
"""


def test_each_machine_runs_the_program_as_it_was_written(tmp_path):
    """Arguments and folders that a shell would take apart arrive whole, and what is secret stays here."""
    folder = tmp_path / "it's $(a) folder"
    folder.mkdir()
    arguments = ["two words", "it's", '"$HOME"', "$(reboot)", ";reboot", "a\nb", "*", "--", "", "é"]
    job = Launched(
        folder, "--machines", "a,me@b:0", "--private-network",
        program=SAYS, arguments=arguments, SECRET="x", TF_SETTING="y",
    )  # fmt: skip
    code, lines, errors = job.end()
    assert code == 0, errors
    assert [line[:4] for line in lines] == ["a | ", "b | "]
    for rank, line in enumerate(lines):
        said = ["a,b", "1", None, "y", (None, "-1")[rank]]  # the second may use no card
        assert json.loads(line[4:]) == ["ab"[rank], rank, 0, arguments, str(folder), "", said]
    asked = [ast.literal_eval(line) for line in (folder / "ssh" / "asked").read_text().splitlines()]
    assert all(words[-1].endswith(" -P -m colonnade.fleet.far_end") for words in asked if "-G" not in words)
    assert [words[-2:] for words in asked if "-G" in words] == [["--", "a"], ["--", "me@b"]]


ROUNDS = """
from pathlib import Path
print(name, generation, size, flush=True)
cut = Path("ssh/cut-b")
if generation == 0:
    if name == "b":
        time.sleep(0.3)
        cut.touch()  # the machine is gone, in the midst of its work
        time.sleep(100)
    while not cut.exists():
        time.sleep(0.01)
    sys.exit(75)
if generation == 1:
    if name == "c":
        cut.unlink()  # it comes back, and takes part when the others start anew
    sys.exit(75)
"""


def test_a_lost_machine_is_left_out_until_it_comes_back(tmp_path):
    code, lines, errors = Launched(tmp_path, "--machines", "a,b,c", program=ROUNDS).end()
    assert code == 0, errors
    first = ["a | a 0 3", "b | b 0 3", "c | c 0 3"]
    assert lines == sorted([*first, "a | a 1 2", "c | c 1 2", "a | a 2 3", "b | b 2 3", "c | c 2 3"])
    assert "b was lost" in errors
    assert "starting again (5 left)" in errors
    assert "going on without b: ssh: connect to host b port 22: No route to host" in errors
    assert "Traceback" not in errors


def test_the_code_of_a_failure_goes_before_those_of_its_victims(tmp_path):
    program = "print(generation); time.sleep(0.5 * (rank == 1)); sys.exit(3 if rank == 1 else 75)"
    code, lines, errors = Launched(tmp_path, "--local", "3", program=program).end()
    assert code == 3
    assert lines == ["local-0 | 0", "local-1 | 0", "local-2 | 0"]
    assert "colonnade: local-1 ended with exit code 3" in errors


def test_after_75_and_after_a_kill_it_starts_anew_so_often(tmp_path):
    program = """
print(generation, *me["cluster"]["worker"])
if generation == 0 and rank == 1:
    os.kill(os.getpid(), 9)
sys.exit(75 if generation < 2 else 0)
"""
    code, lines, errors = Launched(tmp_path, "--local", "2", "--restarts", "2", program=program).end()
    assert code == 0, errors
    heads = [f"local-{rank} | {generation}" for rank in range(2) for generation in range(3)]
    assert [line.partition(" 127")[0] for line in lines] == heads
    addresses = [address for line in lines[:3] for address in line.split()[3:]]
    assert len(set(addresses)) == 6  # none twice: who comes late from one start finds no server of the next
    assert all(address.startswith("127.0.0.1:") for address in addresses)
    assert "local-1 was killed by SIGKILL" in errors
    code, lines, errors = Launched(tmp_path, "--local", "1", "--restarts", "1", program="sys.exit(75)").end()
    assert code == 75
    assert "no restarts are left" in errors


HEARS = """
import signal, subprocess
def heard(number, _):
    print("heard", signal.Signals(number).name, flush=True)
    if number == signal.SIGTERM:
        time.sleep(0.5 * (rank == 0))  # it saves, for all of them
        sys.exit(75)
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
    signal.signal(number, heard)
below = subprocess.Popen(["sleep", "1000"])
print(os.getpid(), below.pid, flush=True)
while True:
    time.sleep(0.1)
"""


@pytest.mark.parametrize("options", [("--local", "2"), ("--machines", "a,b")])
def test_signals_reach_all_and_nothing_is_started_again(tmp_path, options):
    job = Launched(tmp_path, *options, program=HEARS)
    pids = [int(pid) for line in job.lines(2) for pid in line.split(" | ")[1].split()]
    for number in (signal.SIGINT, signal.SIGUSR1):
        job.process.send_signal(number)
        assert [line.split(" | ")[1] for line in job.lines(2)] == [f"heard {number.name}"] * 2
    job.process.send_signal(signal.SIGTSTP)  # which would leave the workers without a launcher
    job.process.send_signal(signal.SIGTERM)
    code, lines, errors = job.end()
    assert code == 75, errors
    assert [line.split(" | ")[1] for line in lines] == ["heard SIGTERM"] * 2
    assert "starting again" not in errors
    assert gone(pids, seconds=0)


@pytest.mark.parametrize(
    ("options", "leased"),
    [(("--local", "2", "--virtual", "2"), [4]), (("--machines", "a:1,b:2", "--virtual", "3"), [1, 2])],
)
def test_a_killed_launcher_leaves_nothing(tmp_path, options, leased):
    """Workers here share one lease; on machines, each has its own."""
    job = Launched(tmp_path, *options, program=HEARS)
    pids = [int(pid) for line in job.lines(2) for pid in line.split(" | ")[1].split()]
    below = psutil.Process(job.process.pid).children(recursive=True)
    assert sorted(len(claim.slots) for claim in claims(tmp_path / "leases")) == leased
    job.process.kill()
    assert gone([*pids, *(process.pid for process in below)])
    assert claims(tmp_path / "leases") == ()
    job.process.communicate()


def test_nobody_reads_what_is_printed(tmp_path):
    job = Launched(
        tmp_path, "--local", "2", program="while True: print(os.getpid(), flush=True); time.sleep(0.1)"
    )
    pids = {int(line.split(" | ")[1]) for line in job.lines(6)}
    job.process.stdout.close()
    assert job.process.wait(timeout=20) == 141
    assert gone(pids)
    errors = job.process.stderr.read()
    assert "Error" not in errors
    job.process.stdin.close()
    job.process.stderr.close()


def test_more_cards_than_a_machine_has(tmp_path):
    code, _, errors = Launched(tmp_path, "--machines", "a:4", "--virtual", "3", program="").end()
    assert code == 2
    assert "a: run cannot work with:\n  --cards=4: there are not that many cards here, only 3" in errors


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The launcher in this process, with the stand-in for ssh; a function that runs it."""
    monkeypatch.setenv("PATH", install(tmp_path / "ssh")["PATH"])
    monkeypatch.chdir(tmp_path)

    def launch(*command, lease=None, **options):
        return machines.run(command or ["true"], lease=lease or {"cards": None, "virtual": None}, **options)

    return launch


def test_machines_that_do_not_answer_are_one_error_within_ten_seconds(here, tmp_path, monkeypatch):
    assert rounds.ANSWER + 1 < 10
    assert float(remote_shell.OPTIONS["ConnectTimeout"]) < rounds.ANSWER
    monkeypatch.setattr(rounds, "ANSWER", 1)
    (tmp_path / "ssh" / "cut-b").touch()
    (tmp_path / "ssh" / "silent-c").touch()
    started = time.monotonic()
    with pytest.raises(InvalidArgument) as refused:
        here(machines="b,c")
    assert time.monotonic() - started < 3
    first, second = refused.value.problems
    assert (first.value, second.value) == ("b", "c")
    assert "No route to host" in first.rule
    assert "did not answer in 1 seconds" in second.rule
    assert "ssh c " in second.fix


def test_enough_machines_are_enough_where_the_user_says_so(here, tmp_path, capfd):
    (tmp_path / "ssh" / "cut-b").touch()
    assert here(machines="a,b", at_least=1) == 0
    assert "going on without b" in capfd.readouterr().err


def test_too_few_at_a_restart_are_waited_for_so_often(here, tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(rounds, "COMING_UP", 0.1)
    monkeypatch.setattr(rounds, "PATIENCE", 0.1)
    program = ["sh", "-c", 'case "$TF_CONFIG" in *\'"index": 1\'*) touch ssh/cut-b;; esac; sleep 100']
    assert here(*program, machines="a,b", at_least=2, restarts=2) == 75
    errors = capfd.readouterr().err
    assert "b was lost; starting again (2 left)" in errors
    assert "b did not answer, and 2 are needed; starting again (1 left)" in errors


def test_what_is_missing_on_a_machine_is_named(here, tmp_path, monkeypatch):
    with pytest.raises(InvalidArgument, match="there is no program 'nowhere'"):
        here("nowhere", machines="a")
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(machines.os, "getcwd", lambda: "/not/there")
        with pytest.raises(InvalidArgument, match="directory /not/there is not there"):
            here(machines="a")
    monkeypatch.setattr(rounds, "__version__", "99")
    with pytest.raises(InvalidArgument, match=r"it has Colonnade .*, and this is 99"):
        here(machines="a")


def test_machines_that_strangers_could_reach_are_refused_before_anything_is_started(here, tmp_path):
    with pytest.raises(
        InvalidArgument, match=r"port 12000-31999 of far1, far2(.|\n)*dport '{ 12000-31999 }' drop"
    ):
        here(machines="far1,far2")
    asked = (tmp_path / "ssh" / "asked").read_text().splitlines()
    assert all("'-G'" in line for line in asked)


def test_a_machine_must_have_a_name_by_which_the_others_reach_it(here):
    with pytest.raises(InvalidArgument, match="--machines='a': is this machine itself"):
        here(machines="a,far1", private_network=True)


def test_all_that_is_wrong_with_the_options_at_once(tmp_path):
    wrong = ["--local", "0", "--machines", "a", "--at-least", "2", "--restarts", "-1", "--retries", "2"]
    done = run([COMMAND, "run", *wrong, "--", "true"])
    assert done.returncode == 2
    assert [line.split("=")[0].strip() for line in done.stderr.splitlines()[1:]] == [
        "--local",
        "--at-least",
        "--restarts",
        "--retries",
    ]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"local": 0}, "--local=0"),
        ({"restarts": 2}, "--machines=None"),
        ({"machines": "a,-b"}, "--machines='-b'"),
        ({"local": 2, "at_least": 3}, "must be 1 to 2"),
    ],
)
def test_options_that_are_refused(here, options, says):
    with pytest.raises(InvalidArgument, match=says):
        here(**options)


def test_what_of_the_environment_goes_to_other_machines():
    outside = {"PATH": "/bin", "TF_X": "1", "COLONNADE_X": "2", "AWS_SECRET_ACCESS_KEY": "s", "HOME": "/h"}
    assert machines.passed(outside) == {"PATH": "/bin", "TF_X": "1", "COLONNADE_X": "2"}
