import sys

from fresh import run

import colonnade as cn


def test_python_m_colonnade_is_the_command():
    done = run([sys.executable, "-m", "colonnade", "--version"])
    assert done.returncode == 0, done.stderr
    assert cn.__version__ in done.stdout
