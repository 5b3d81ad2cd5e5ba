"""What a program says of its own end, in the last moment before it."""

import subprocess
import sys

import pytest

from colonnade.hardware.clusters.program_end import ProgramEnd

PROGRAM = """
import atexit, sys
from colonnade.hardware.clusters.program_end import ProgramEnd

def main():
    end = ProgramEnd.watched()
    atexit.register(lambda: print("failure:", end.failure, flush=True))
    {body}

{call}
"""


def told_by(body, call="main()", how=("-c",)):
    program = PROGRAM.format(body=body, call=call)
    done = subprocess.run([sys.executable, *how, program], capture_output=True, text=True, timeout=60)
    return done.stdout.strip().removeprefix("failure: "), done.returncode


@pytest.mark.parametrize(
    ("body", "failure", "code"),
    [
        ("sys.exit('no data in /data')", "it ended with: no data in /data", 1),
        ("sys.exit(3)", "it ended with exit code 3", 3),
        ("sys.exit(0)", "None", 0),
        ("sys.exit()", "None", 0),
        ("sys.exit(75)", "None", 75),
        ("sys.exit(143)", "None", 143),
        ("pass", "None", 0),
    ],
)
def test_the_exit_code_is_known_and_whether_it_would_come_again(body, failure, code):
    assert told_by(body) == (failure, code)


def test_an_exit_that_somebody_caught_is_none():
    """As of a command line's parser that is tried."""
    assert told_by("sys.exit('no')", "try:\n    main()\nexcept SystemExit:\n    pass") == ("None", 0)


def test_a_program_that_is_run_as_a_module_is_known_too(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM.format(body="sys.exit('no')", call="main()"))
    (tmp_path / "fine.py").write_text(PROGRAM.format(body="pass", call="main()"))
    for name, failure in (("program", "it ended with: no"), ("fine", "None")):
        done = subprocess.run(
            [sys.executable, "-m", name], cwd=tmp_path, capture_output=True, text=True, timeout=60
        )
        assert done.stdout.strip() == f"failure: {failure}"


def test_without_a_frame_what_was_noted_counts():
    end = ProgramEnd(None)
    assert end.failure is None
    end.note("wrong")
    assert end.failure == "it ended with: wrong"
