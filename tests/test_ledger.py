"""A soak is stopped, killed and gone on with; its ledger says what is still to do."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fault_table import TEST, table
from fresh import ROOT
from ledger import Entry, Ledger, digest


def entry(test, code="new", result="passed", seconds=1.0):
    return Entry(test, code, result, seconds)


def test_the_table_of_faults_has_the_latest_figures_of_every_test():
    def met(number, noticed, result="passed"):
        figures = {"kill": {"noticed": noticed, "training": 10 * noticed}, "rough link": {"training": 2.0}}
        return Entry(f"{TEST}[{number}]", "new", result, 60.0, figures)

    lines = table([met(0, 9.0), met(0, 0.1), met(1, 0.3), met(2, 9.0, "failed"), entry("f::other")])
    assert lines.splitlines()[2:] == [
        "| kill | 2 | 0.2, at most 0.3 | - | 2.0, at most 3.0 |",
        "| rough link | 2 | - | - | 2.0, at most 2.0 |",
    ]


def test_what_is_done_what_failed_what_is_older_and_what_is_missing(tmp_path):
    ledger = Ledger(tmp_path / "here" / "ledger.jsonl")
    assert ledger.work(["a"], "new").missing == ["a"]
    assert ledger.work(["a"], "new").seconds is None
    for one in (
        entry("f::done", result="failed"),
        entry("f::done", seconds=10),
        entry("f::bad"),
        entry("f::bad", result="failed", seconds=20),
        entry("f::old", code="old", seconds=40),
        entry("f::both", seconds=3),
        entry("f::both", code="old", seconds=3),
        entry("f::skipped", result="skipped", seconds=0),
    ):
        ledger.append(one)
    tests = ["f::done", "f::bad", "f::old", "f::both", "f::skipped", "f::new"]
    work = ledger.work(tests, "new")
    assert work.done == ["f::done", "f::both", "f::skipped"]
    assert (work.failed, work.older, work.missing) == (["f::bad"], ["f::old"], ["f::new"])
    assert work.seconds == pytest.approx(20 + 40 + (10 + 20 + 40 + 3 + 0) / 5)
    assert "1 done with older code: to be run again (SOAK_ACCEPT_OLD=1 keeps them)" in str(work)
    assert "still to do 3, about 1 min" in str(work)
    kept = ledger.work(tests, "new", accept_old=True)
    assert (kept.older, kept.to_do) == ([], ["f::bad", "f::new"])


def test_a_torn_line_is_passed_over(tmp_path):
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.append(entry("a"))
    whole = ledger.path.read_bytes()
    ledger.path.write_bytes(whole + whole[:20])
    assert ledger.entries() == [entry("a")]
    ledger.append(entry("b"))
    assert ledger.entries() == [entry("a"), entry("b")]


TESTS = """
import os, time, pytest
from pathlib import Path

@pytest.mark.parametrize("number", range(4))
def test_piece(number, record_property):
    record_property("kills", 10 * number)

def test_fails_at_first():
    assert Path("mended").exists()

@pytest.mark.long
@pytest.mark.alone
def test_takes_its_time():
    Path("begun").touch()
    while not Path("go").exists():
        time.sleep(0.01)

def test_is_skipped():
    pytest.skip("not here")
"""


@pytest.fixture
def project(tmp_path):
    (tmp_path / "tests" / "soak").mkdir(parents=True)
    for name in ("soaking.py", "ledger.py"):
        shutil.copy(ROOT / "tests" / name, tmp_path / "tests" / name)
    (tmp_path / "tests" / "soak" / "test_some.py").write_text(TESTS)
    (tmp_path / "tests" / "test_short.py").write_text("def test_is_not_for_a_soak():\n    assert False\n")
    (tmp_path / "pyproject.toml").write_text(
        "[tool.pytest.ini_options]\n"
        "addopts = \"-q -n 2 --dist loadfile --import-mode=importlib -m 'not long'\"\n"
        'markers = ["long", "alone"]\nnorecursedirs = ["soak"]\n'
    )
    (tmp_path / "src").mkdir()  # coverage looks there
    (tmp_path / ".gitignore").write_text("/runs/\n__pycache__/\n")
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    return tmp_path


def soak(project: Path, *options: str, **environment: str) -> subprocess.Popen[str]:
    # What the soak that runs this test was told is not for the one that is tried.
    outside = {name: value for name, value in os.environ.items() if not name.startswith("SOAK_")}
    return subprocess.Popen(
        [sys.executable, "tests/soaking.py", *options],
        cwd=project,
        env={**outside, **environment, "COLONNADE_SOAK": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def said(process: subprocess.Popen[str]) -> str:
    out, _ = process.communicate(timeout=120)
    return out


@pytest.mark.long
def test_a_soak_goes_on_where_it_was_killed(project):
    first = soak(project)
    while not (project / "begun").exists():
        assert first.poll() is None, said(first)
        time.sleep(0.02)
    os.killpg(first.pid, signal.SIGKILL)
    assert "0 done, 7 not run yet\nsoak: still to do 7, not known yet" in said(first)
    lines = [json.loads(line) for line in (project / "runs/soak/ledger.jsonl").read_text().splitlines()]
    assert {line["test"].split("::")[1]: line["result"] for line in lines} == {
        **{f"test_piece[{n}]": "passed" for n in range(4)},
        "test_fails_at_first": "failed",
        "test_is_skipped": "skipped",
    }
    assert sorted(line["figures"]["kills"] for line in lines if line["figures"]) == [0, 10, 20, 30]
    assert "assert False" in "".join(line["why"] for line in lines)

    (project / "mended").touch()
    (project / "go").touch()
    second = soak(project)
    out = said(second)
    assert "5 done, 1 failed: to be run again, 1 not run yet\nsoak: still to do 2, about 0 min" in out
    assert "7 done, 0 not run yet" in out
    assert second.returncode == 0

    # Other code: what was done is told, and not taken for done. A piece is chosen as in pytest.
    (project / "tests" / "test_short.py").write_text("")
    third = soak(project, "-k", "piece", "--collect-only")
    assert "0 done, 4 done with older code: to be run again (SOAK_ACCEPT_OLD=1" in said(third)
    assert "4 done, 0 not run yet" in said(soak(project, "-k", "piece", SOAK_ACCEPT_OLD="1"))


def test_the_digest_is_of_what_is_on_disk_and_not_ignored(project):
    before = digest(project)
    (project / "runs").mkdir()
    (project / "runs" / "ledger.jsonl").write_text("x")
    (project / "README.md").write_text("figures")
    assert digest(project) == before
    (project / "tests" / "new.py").write_text("x")
    after = digest(project)
    assert after != before
    (project / "tests" / "new.py").write_text("y")
    assert digest(project) != after
