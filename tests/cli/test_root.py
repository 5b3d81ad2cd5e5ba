import os
import subprocess
from pathlib import Path

from fresh import COMMAND, run
from runs import run_folder

import colonnade as cn


def test_version():
    assert run([COMMAND, "--version"]).stdout.strip() == cn.__version__


def test_a_mistake_shows_no_traceback():
    done = run([COMMAND, "dmeo"])
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_the_name_of_a_folder_in_another_encoding_is_printed_as_it_is(tmp_path):
    """Where Python is strict about what it prints, as it is in most terminals."""
    folder = run_folder(Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9")))
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8:strict"}
    done = subprocess.run([COMMAND, "report", folder], capture_output=True, env=environment, check=True)
    assert done.stdout == os.fsencode(folder / "report.html") + b"\n"
