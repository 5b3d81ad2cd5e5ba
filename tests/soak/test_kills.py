"""Trainings that are killed, saved steps that are damaged, programs that are started twice: the long runs.

`COLONNADE_SOAK` divides the numbers, for a short look: COLONNADE_SOAK=10 makes 100 kills of 1 000.
"""

import json
import os
import sys

import pytest
from corruption import corrupt
from fresh import ROOT, forked, run

SHARE = int(os.environ.get("COLONNADE_SOAK", "1"))


def killed(folder, *arguments):
    program = str(ROOT / "tests" / "killed.py")
    done = forked([program, str(folder), *arguments], timeout=3000)
    assert done.returncode == 0, done.stderr
    print(arguments, done.stdout)
    return json.loads(done.stdout)


# Twenty kinds of fifty kills each. `trainings.py` says what is promised for each.
KINDS = [
    *[("shared", data) for data in ("arrays", "generator", "seeded", "unseeded", "repeat")],
    *[("mirrored", data) for data in ("seeded", "unseeded repeat")],
    *[("partitioned", data) for data in ("arrays", "seeded", "repeat")],
    *[("asynchronous", data) for data in ("arrays", "generator", "seeded", "unseeded repeat")],
    ("asynchronous alone", "seeded"),
    *[("local", data) for data in ("seeded", "unseeded")],
    ("elastic", "generator"),
    *[("pipeline", data) for data in ("arrays", "seeded")],
]


@pytest.mark.parametrize(("mode", "data"), KINDS)
def test_a_thousand_kills(tmp_path, record_property, mode, data):
    wanted = max(1, 50 // SHARE)
    total = killed(tmp_path, "random", str(wanted), str(2026 + KINDS.index((mode, data))), mode, data)
    for name in ("kills", "inside a save", "between steps", "trainings", "as promised"):
        record_property(name, total[name])
    assert total["kills"] >= wanted
    assert SHARE > 1 or total["inside a save"] >= total["kills"] // 4
    assert total["as promised"] == total["trainings"] > 0, (total["wanted"], total["others"])


def test_a_kill_at_every_write_sync_and_rename(tmp_path, record_property):
    total = killed(tmp_path, "points", "shared")
    record_property("kills", total["points"])
    calls = ("write", "fsync", "rename", "remove", "mkdir")
    assert set(total["kinds"]) == {f"{when} {call}" for when in ("before", "after") for call in calls}


def test_ten_thousand_corruptions(tmp_path, record_property):
    total = corrupt(tmp_path, 10_000 // SHARE, seed=2026)
    for kind, number in total.items():
        record_property(kind, number)
    assert sum(total.values()) == 10_000 // SHARE


def test_two_hundred_double_launches(tmp_path):
    done = run(
        [sys.executable, str(ROOT / "tests" / "launches.py"), str(tmp_path), str(200 // SHARE)], timeout=600
    )
    assert done.stdout.strip() == str(200 // SHARE), done.stderr
