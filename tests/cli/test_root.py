from fresh import COMMAND, run

import colonnade as cn


def test_version():
    assert run([COMMAND, "--version"]).stdout.strip() == cn.__version__


def test_a_mistake_shows_no_traceback():
    done = run([COMMAND, "dmeo"])
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
