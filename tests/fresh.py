"""Run code in a process of its own: for another number of devices, or a TensorFlow not yet started."""

import atexit
import functools
import json
import os
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

ROOT = Path(__file__).parent.parent
COMMAND = str(Path(sys.executable).with_name("colonnade"))
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "-1"}


def fresh(code: str, *, virtual: int | None = None, timeout: float = 240, **environment: str) -> str:
    """What `code` prints; `cn` and `tf` are imported for it. A failure shows its error output."""
    start = f"cn.setup(virtual={virtual})" if virtual else ""
    program = f"import colonnade as cn\nimport tensorflow as tf\n{start}\n{textwrap.dedent(code)}"
    if environment:  # TensorFlow reads some of it when it is imported
        done = run([sys.executable, "-c", program], timeout=timeout, **environment)
    else:
        done = forked(["-c", program], timeout=timeout)
    assert done.returncode == 0, done.stderr
    return done.stdout


def run(
    command: list[str], *, timeout: float = 240, cwd: Path = ROOT, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a command, from the project's root, without TensorFlow's start-up notes."""
    full = {**os.environ, **QUIET, **environment}
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=full, cwd=cwd)


def forked(command: list[str], *, timeout: float = 240, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run `python COMMAND...` in a fork of a process that has imported TensorFlow and not started it.

    What takes longer than `timeout` dies of SIGALRM.
    """
    server = _server()
    assert server.stdin is not None
    assert server.stdout is not None
    with tempfile.NamedTemporaryFile("r+") as out, tempfile.NamedTemporaryFile("r+") as err:
        request = {"command": command, "cwd": str(cwd), "out": out.name, "err": err.name, "seconds": timeout}
        print(json.dumps(request), file=server.stdin, flush=True)
        code = int(server.stdout.readline())
        return subprocess.CompletedProcess(command, code, out.read(), err.read())


@functools.cache
def _server() -> subprocess.Popen[str]:
    """One for all tests of this process; it ends with its standard input."""
    server = subprocess.Popen(
        [sys.executable, str(ROOT / "tests" / "forks.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **QUIET},
        cwd=ROOT,
    )
    atexit.register(server.communicate)
    return server
