"""The program that runs an objective: `python -m colonnade.sweeps.slots.worker NAME`, started by a keeper.

worker.py NAME                   serve trials that come over the channel
worker.py --check NAME           import it only; a problem is printed as JSON, exit code 1
worker.py --fixed NAME PARAMS    call it once with these parameters (JSON), and print what it returns
"""

import json
import math
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from colonnade.errors import InvalidArgument
from colonnade.sweeps.objective import load
from colonnade.sweeps.slots.channel import CHANNEL, Channel
from colonnade.sweeps.slots.remote_trial import RemoteTrial


def serve(name: str) -> None:
    """Run trials until the sweep has no more for this process."""
    channel = Channel(int(os.environ.pop(CHANNEL)))
    home = os.getcwd()
    function = load(name)
    while (says := channel.receive()) is not None:
        os.chdir(home)
        os.environ.update(says["environment"])
        if says["log"] is not None:
            _print_into(says["log"])
        result = attempt(function, RemoteTrial(channel, says))
        sys.stdout.flush()
        sys.stderr.flush()
        if not channel.is_ours:
            os._exit(0)  # a child that the objective forked has come back from it, and is none of ours
        channel.send(result)
        if says["last"]:
            return


def attempt(function: Callable[..., Any], trial: Any) -> dict[str, Any]:
    """Call the objective; an exit and a signal are not caught, for the sweep sees them from outside."""
    try:
        returned = function(trial)
    except Exception as error:
        if _is_pruned(error):
            return {"end": "pruned"}
        traceback.print_exc()
        return {"end": "failed", "reason": f"{type(error).__name__}: {error}"}
    try:
        value = float(returned)
    except (TypeError, ValueError):
        return {"end": "failed", "reason": f"the objective returned {returned!r:.80}, and not a number"}
    if not math.isfinite(value):
        return {"end": "failed", "reason": f"the objective returned {value}"}
    return {"end": "complete", "value": value}


def _is_pruned(error: Exception) -> bool:
    optuna = sys.modules.get("optuna")
    return optuna is not None and isinstance(error, optuna.TrialPruned)


def _print_into(path: str) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)


def check(name: str) -> int:
    """Whether an objective can be imported."""
    try:
        load(name)
    except InvalidArgument as error:
        print("\n" + json.dumps({k: str(v) for k, v in asdict(error.problems[0]).items()}))
        return 1
    return 0


def fixed(name: str, params: dict[str, Any]) -> int:
    """Call an objective once with given parameters."""
    import optuna

    result = attempt(load(name), optuna.trial.FixedTrial(params))
    if result["end"] != "complete":
        print(f"{result['end']}: {result.get('reason', 'a fixed trial is never pruned')}", file=sys.stderr)
        return 1
    print(f"value={result['value']!r}")
    return 0


def main(arguments: list[str]) -> int:
    try:
        if arguments[0] == "--check":
            return check(arguments[1])
        if arguments[0] == "--fixed":
            return fixed(arguments[1], json.loads(arguments[2]))
        serve(arguments[0])
    except InvalidArgument as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
