"""A process that has imported TensorFlow and not started it; what it is asked to run, it runs in forks.

An import takes five seconds, of which a test that needs a process of its own has no use. A request is a
line of JSON on the standard input; the answer, once the fork has ended, is a line with its exit code.
"""

import gc
import json
import os
import runpy
import signal
import sys
import types
import warnings
from typing import Any

import keras  # noqa: F401
import tensorflow as tf  # noqa: F401

import colonnade as cn


def serve() -> dict[str, Any] | None:
    """Fork for every request; a fork returns with its request, the process itself at the end of them."""
    for line in sys.stdin:
        request: dict[str, Any] = json.loads(line)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # threads: those of NumPy, which knows forks
            pid = os.fork()
        if pid == 0:
            return request
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        os.write(1, f"{code}\n".encode())
    return None


def execute(command: list[str], cwd: str, out: str, err: str, seconds: float) -> None:
    """What `python COMMAND...` does, after its imports."""
    signal.setitimer(signal.ITIMER_REAL, seconds)
    for number, path, flags in ((0, os.devnull, os.O_RDONLY), (1, out, os.O_WRONLY), (2, err, os.O_WRONLY)):
        os.dup2(os.open(path, flags), number)
    os.chdir(cwd)
    if command[0] != "-c":
        sys.argv, sys.path[0] = command, os.path.dirname(command[0])
        runpy.run_path(command[0], run_name="__main__")
        return
    sys.argv, sys.path[0] = ["-c", *command[2:]], ""
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    exec(compile(command[1], "<string>", "exec"), vars(main))


for name in cn.__all__:
    getattr(cn, name)  # they are imported when they are asked for
gc.collect()
gc.freeze()
gc.set_threshold(50_000, 20, 100)  # as in conftest.py
asked = serve()
if asked is not None:
    execute(**asked)
