"""Runs a program that may hang or crash, under a time limit, in a process of its own.

A collective that waits for a replica which never comes waits for ever, and after one has failed every
later one in that process fails too. So such things run in a process of their own, which is ended
when its time is over, and which ends itself if nobody is left to do that.
"""

import json
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# A process that was killed and is still there is held by the driver; nobody can end it.
TO_DIE = 5.0


@dataclass(frozen=True)
class Answer:
    """What a program said: the JSON in the last line that holds some, or why there is none.

    Libraries write to the output as well: NCCL its version, and not before the program ends.
    """

    said: Any = None
    trouble: str = ""
    words: str = ""  # its own about the trouble, which may hold anything
    printed: tuple[str, ...] = ()


def ask(module: str, *arguments: str, seconds: float, environment: Mapping[str, str] | None = None) -> Answer:
    """Run a module as a program; if it has not ended after so many seconds, end it and all it started."""
    child = subprocess.Popen(
        [sys.executable, "-m", __name__, str(seconds + TO_DIE), module, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(environment or {})},
        start_new_session=True,
    )
    try:
        printed, complained = child.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        return Answer(trouble=f"no answer within {seconds:g} s; {_ended(child)}")
    finally:
        if child.returncode is None:
            _ended(child)
    lines = tuple(printed.strip().splitlines())
    if child.returncode < 0:
        return Answer(trouble=f"died of {signal.Signals(-child.returncode).name}", printed=lines)
    if child.returncode:
        last = (complained.strip().splitlines() or ["no message"])[-1]
        return Answer(trouble=f"exit code {child.returncode}", words=last, printed=lines)
    for line in reversed(lines):
        try:
            return Answer(json.loads(line), printed=lines)
        except json.JSONDecodeError:
            continue
    return Answer(trouble="ended without an answer", printed=lines)


def _ended(child: "subprocess.Popen[str]") -> str:
    """Kill a process and those it started; whether that worked."""
    os.killpg(child.pid, signal.SIGKILL)
    try:
        child.communicate(timeout=TO_DIE)
    except subprocess.TimeoutExpired:
        return f"process {child.pid} was killed and is still there, held by the driver"
    return "it was ended"


def main() -> None:
    """In the other process: set an alarm that nothing can hold up, and run the module."""
    seconds, module, *arguments = sys.argv[1:]
    signal.setitimer(signal.ITIMER_REAL, float(seconds))
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
