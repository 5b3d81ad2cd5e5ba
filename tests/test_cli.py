import json
import re
import sys
from pathlib import Path

from fresh import run

import colonnade as cn

COMMAND = str(Path(sys.executable).with_name("colonnade"))


def test_version():
    assert run([COMMAND, "--version"]).stdout.strip() == cn.__version__


def test_demo():
    done = run([COMMAND, "demo"])
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"\+5\.0000  [+-]0\.0000  \+3\.0000", done.stdout)) == 2
    assert re.search(r"0 +│ CPU:0 +│ CPU:0", done.stdout)
    assert re.search(r"1 +│ CPU:1 +│ CPU:1", done.stdout)
    assert "Try next" in done.stdout


def test_devices():
    assert "cores" in run([COMMAND, "devices"]).stdout
    facts = json.loads(run([COMMAND, "devices", "--json"]).stdout)
    assert facts["cpu"]["cores"] >= 1
    assert isinstance(facts["cards"], list)


def test_a_mistake_shows_no_traceback():
    done = run([COMMAND, "dmeo"])
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
