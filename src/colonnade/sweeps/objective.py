"""Finds the objective of a sweep by name: `train:objective` in a module, `train.py:objective` in a script."""

import importlib
import importlib.util
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any

from colonnade.errors import InvalidArgument, Problem

WHERE = "sweep"


def load(name: str) -> Callable[..., Any]:
    """The function that `module:function` or `script.py:function` names, from the current directory."""
    place, _, attribute = name.rpartition(":")
    if not place or not attribute.isidentifier():
        raise _mistake(name, "must be module:function", "For example: train:objective")
    module = _script(place, name) if place.endswith(".py") else _module(place, name)
    if not hasattr(module, attribute):
        known = [key for key, value in vars(module).items() if callable(value) and key[0] != "_"]
        close = get_close_matches(attribute, known, n=3, cutoff=0.4) or known
        fix = f"It has: {', '.join(close)}" if close else "Define it at the top level"
        raise _mistake(name, f"{place} has no {attribute!r}", fix)
    function = getattr(module, attribute)
    if not callable(function):
        raise _mistake(name, f"is a {type(function).__name__}, not a function", "Name a function of a trial")
    return function


def _module(place: str, name: str) -> ModuleType:
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as missing:
        if missing.name is None or not f"{place}.".startswith(f"{missing.name}."):
            raise _broken(name, place, missing) from None
        rule = f"there is no module {missing.name!r} in {os.getcwd()} or among the installed packages"
        raise _mistake(name, rule, "Run it in the folder of the module") from None
    except (Exception, SystemExit) as error:
        raise _broken(name, place, error) from None


def _script(place: str, name: str) -> ModuleType:
    """A script under a name of its own, so that what is under `if __name__ == "__main__"` is not run."""
    path = Path(place).resolve()
    if not path.is_file():
        raise _mistake(name, f"there is no file {place}", "Name a Python file")
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None, "its name ends in .py"
    assert spec.loader is not None, "and so it has a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise _broken(name, place, error) from None
    return module


def named(function: Callable[..., Any]) -> str:
    """The name by which another process finds a function."""
    module, attribute = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    fix = "Define it at the top level of a module or a script"
    if module is None or not attribute.isidentifier():
        raise _mistake(
            attribute or repr(function), "must be a function that another process can import by its name", fix
        )
    if module != "__main__":
        return f"{module}:{attribute}"
    script = getattr(function, "__globals__", {}).get("__file__")
    if script is None:
        raise _mistake(attribute, "was typed in, and another process cannot import it", fix)
    return f"{Path(script).resolve()}:{attribute}"


def check_importable(name: str) -> None:
    """Import it in a process of its own, as a trial will; an error says what is wrong."""
    command = [sys.executable, "-m", "colonnade.sweeps.slots.worker", "--check", name]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode == 0:
        return
    try:
        problem = Problem(**json.loads(done.stdout.splitlines()[-1]))
    except (ValueError, TypeError, IndexError):
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        last = said[-1] if said else f"exit code {done.returncode}"
        problem = _problem(name, f"importing it ended the process ({last})", "Import it by hand to see why")
    raise InvalidArgument(WHERE, [problem])


def _broken(name: str, place: str, error: BaseException) -> InvalidArgument:
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "importlib" not in f.filename]
    users = [f for f in frames if Path(__file__).parent not in Path(f.filename).parents]
    where = f" (at {users[-1].filename}:{users[-1].lineno})" if users else ""
    said = f"{type(error).__name__}: {error}".strip().rstrip(".:")
    return _mistake(name, f"importing {place} failed: {said}{where}", "Mend that, and run it again")


def _problem(name: str, rule: str, fix: str) -> Problem:
    return Problem("objective", name, rule, fix)


def _mistake(name: str, rule: str, fix: str) -> InvalidArgument:
    return InvalidArgument(WHERE, [_problem(name, rule, fix)])
