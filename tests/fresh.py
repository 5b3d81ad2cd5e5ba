"""Run code in a process of its own: for another number of devices, or a TensorFlow not yet started."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).parent.parent


def fresh(code: str, *, virtual: int | None = None, timeout: float = 240, **environment: str) -> str:
    """What `code` prints; `cn` and `tf` are imported for it. A failure shows its error output."""
    start = f"cn.setup(virtual={virtual})" if virtual else ""
    program = f"import colonnade as cn\nimport tensorflow as tf\n{start}\n{textwrap.dedent(code)}"
    done = run([sys.executable, "-c", program], timeout=timeout, **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def run(
    command: list[str], *, timeout: float = 240, cwd: Path = ROOT, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a command, from the project's root, without TensorFlow's start-up notes."""
    full = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "-1", **environment}
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=full, cwd=cwd)
