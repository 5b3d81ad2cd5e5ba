import json
import os

import pytest

from colonnade.sweeps.trial_folder import TrialFolder


def made(tmp_path):
    folder = TrialFolder(tmp_path / "0000")
    folder.make()
    return folder


def test_the_end_of_a_log_is_fit_for_a_terminal(tmp_path):
    folder = made(tmp_path)
    folder.log.write_bytes(b"first\n" + bytes(range(256)) + b"\n\x1b[31mred\x1b[0m\rover\nlast\n")
    tail = folder.tail(3)
    assert tail == ["red", "over", "last"]
    assert not any(ord(letter) < 32 for line in folder.tail(100) for letter in line.replace("\t", ""))


def test_of_a_long_log_only_the_end_is_read(tmp_path):
    folder = made(tmp_path)
    folder.log.write_text("x" * 10**6 + "\nlast\n")
    assert folder.tail(1) == ["last"]
    assert folder.tail(5, begin=10**6 + 1) == ["last"]


def test_reports(tmp_path):
    folder = made(tmp_path)
    assert folder.last_report() is None
    folder.reported(3, 0.5)
    folder.reported(4, 0.25)
    with folder.metrics.open("a") as file:
        file.write('{"step": 5, "loss": 1}\n{"torn')
    assert folder.last_report() == (4, 0.25)


def test_attempts_are_kept(tmp_path):
    folder = made(tmp_path)
    assert folder.attempts() == []
    attempts = [{"begun": "a", "exit": 137}, {"begun": "b", "exit": 0}]
    folder.note(attempts, {"x": 1})
    assert folder.attempts() == attempts
    assert json.loads((folder.path / "trial.json").read_text())["parameters"] == {"x": 1}
    (folder.path / "trial.json").write_text("{torn")
    assert folder.attempts() == []


def test_a_checkpoint_that_is_written_over_is_a_sign_of_life(tmp_path):
    folder = TrialFolder(tmp_path / "trial")
    folder.make()
    (folder.checkpoint / "deep").mkdir(parents=True)
    file = folder.checkpoint / "deep" / "weights"
    file.touch()
    later = folder.last_sign() + 100
    os.utime(file, (later, later))
    assert folder.last_sign() == pytest.approx(later)
