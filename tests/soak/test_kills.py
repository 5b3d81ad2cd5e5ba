"""Trainings that are killed, saved steps that are damaged, programs that are started twice: the long runs.

`COLONNADE_SOAK` divides the numbers, for a short look: COLONNADE_SOAK=10 makes 30 kills of 300.
"""

import json
import os
import sys

import pytest
from corruption import corrupt
from fresh import ROOT, run

SHARE = int(os.environ.get("COLONNADE_SOAK", "1"))


def killed(folder, *arguments):
    program = [sys.executable, str(ROOT / "tests" / "killed.py"), str(folder)]
    done = run([*program, *arguments], timeout=4 * 3600)
    assert done.returncode == 0, done.stderr
    print(arguments, done.stdout)
    return json.loads(done.stdout)


@pytest.mark.parametrize("variables", ["shared", "mirrored", "partitioned"])
def test_three_hundred_kills(tmp_path, variables):
    total = killed(tmp_path, "random", str(100 // SHARE), "2026", variables)
    assert total["kills"] >= 100 // SHARE
    assert total["inside a save"] >= total["kills"] // 4
    assert total["equal"] == total["trainings"] > 0


def test_a_kill_at_every_write_sync_and_rename(tmp_path):
    total = killed(tmp_path, "points", "shared")
    calls = ("write", "fsync", "rename", "remove", "mkdir")
    assert set(total["kinds"]) == {f"{when} {call}" for when in ("before", "after") for call in calls}


def test_ten_thousand_corruptions(tmp_path):
    total = corrupt(tmp_path, 10_000 // SHARE, seed=2026)
    print(total)
    assert sum(total.values()) == 10_000 // SHARE


def test_two_hundred_double_launches(tmp_path):
    done = run(
        [sys.executable, str(ROOT / "tests" / "launches.py"), str(tmp_path), str(200 // SHARE)], timeout=600
    )
    assert done.stdout.strip() == str(200 // SHARE), done.stderr
