import os
import socket
import subprocess
import sys
import time
import urllib.request
from io import StringIO
from pathlib import Path

import optuna
import pytest
from fresh import ROOT
from rich.console import Console

import colonnade as cn
from colonnade.show.sweep import command, sweep


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLONNADE_LEASES", str(tmp_path / "leases"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")]))
    return tmp_path


def run(arguments, fix=(), **options):
    console = Console(file=StringIO(), width=110)
    code = command(console, arguments, options, fix)
    return code, console.file.getvalue()


@pytest.mark.long
def test_a_crash_is_reported_with_the_end_of_its_log(here):
    """Six settings on four cards."""
    script = "import sys; x = int(sys.argv[1]); print('at work'); assert x != 3, 'three!'; print(f'loss={x}')"
    code, said = run([sys.executable, "-c", script, "{x}"], grid=("x=1,2,3", "y=1,2"), virtual=4, study="six")
    assert code == 1
    assert "6 of 6 finished: 4 complete, 0 pruned, 2 failed" in said
    assert "best: 1, trial 0, x=1 y=1" in said
    assert "AssertionError: three!" in said
    assert "its log: studies/six/trials/0004/log.txt" in said
    assert "colonnade run --virtual 1 -- env COLONNADE_PARAM_y=1" in said
    assert (here / "studies" / "six" / "report.html").exists()
    dashboard(here / "studies" / "six" / "journal.log")


def dashboard(journal):
    """optuna-dashboard opens the storage, and lists the study."""
    program = str(Path(sys.executable).with_name("optuna-dashboard"))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with subprocess.Popen(
        [program, "--port", str(port), str(journal)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as served:
        try:
            deadline = time.monotonic() + 30
            while True:
                try:
                    with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/studies") as answer:
                        assert '"six"' in answer.read().decode()
                    return
                except OSError:
                    assert time.monotonic() < deadline
                    assert served.poll() is None, served.stdout.read()
                    time.sleep(0.1)
        finally:
            served.terminate()


def test_from_python(here, capsys):
    from objectives import empty

    study = sweep(empty, trials=5, virtual=2, reuse=True, direction="maximize", folder=here / "mine")
    assert isinstance(study, optuna.Study)
    assert [trial.state.name for trial in study.trials] == ["COMPLETE"] * 5
    said = capsys.readouterr().out
    assert "importance of the parameters: x 100%" in said
    assert f"colonnade sweep objectives:empty --fix x={study.best_params['x']}" in said
    assert (here / "mine" / "objectives-empty" / "report.html").exists()


def test_mistakes_come_before_anything_starts(here):
    with pytest.raises(cn.InvalidArgument, match="import by its name"):
        sweep(lambda trial: 1, trials=1)
    with pytest.raises(cn.InvalidArgument, match="there is no such program"):
        run(["no-such-program", "{x}"], grid=("x=1",))
    with pytest.raises(cn.InvalidArgument, match="there is neither an objective nor a command"):
        run([], trials=1)
    assert list(here.iterdir()) == []


def test_without_optuna_it_says_what_to_install(here, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(cn.ColonnadeError, match=r"pip install 'colonnade\[sweep\]'"):
        sweep("objectives:empty", trials=1)


def test_import_needs_no_optuna():
    used = "import colonnade, sys; colonnade.sweep; colonnade.pruning"
    code = f"{used}; print({{'optuna', 'tensorflow'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "set()\n", done.stderr
