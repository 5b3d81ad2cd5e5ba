"""A program in any language as the thing to try: parameters go into its arguments, a number comes out.

The program finds, in its environment:

    COLONNADE_PARAM_<name>   the value of each parameter, also where it is in the arguments as {name}
    COLONNADE_CARDS          the names of its cards, which are also the only ones that it sees
    COLONNADE_TRIAL          the folder of the trial
    COLONNADE_CHECKPOINT     a folder in it for what the program saves; the next attempt finds it again
    COLONNADE_RESULT         a file to which it may write its result, as JSON

Its result is that file, or else the last line of its output that reads name=value.
"""

import json
import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from colonnade.errors import Problem
from colonnade.sweeps.search import written
from colonnade.sweeps.slots.ending import Ending, of_exit
from colonnade.sweeps.trial_folder import TrialFolder

PARAMETER = "COLONNADE_PARAM_"
# {name}, and not {{name}}; other braces, as in JSON, stay as they are.
PLACEHOLDER = re.compile(r"\{\{(\w+)\}\}|\{([A-Za-z_]\w*)\}")
RESULT = re.compile(r"\s*([A-Za-z_][\w./ -]*?)\s*=\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*")


@dataclass(frozen=True)
class Command:
    """The program and its arguments, with {name} where parameters go."""

    argv: tuple[str, ...]

    @property
    def label(self) -> str:
        return shlex.join(self.argv)

    def filled(self, params: Mapping[str, Any]) -> list[str]:
        """The command with the values of a trial; `{{name}}` stands for the text {name}.

        Example:
            >>> Command(("train", "--rate={rate}", '{"a": 1}')).filled({"rate": 0.1})
            ['train', '--rate=0.1', '{"a": 1}']
        """

        def fill(match: re.Match[str]) -> str:
            literal, name = match.groups()
            return f"{{{literal}}}" if literal else as_text(params[name])

        return [PLACEHOLDER.sub(fill, argument) for argument in self.argv]

    def environment(self, params: Mapping[str, Any]) -> dict[str, str]:
        return {f"{PARAMETER}{name}": as_text(setting) for name, setting in params.items()}

    @property
    def placeholders(self) -> tuple[str, ...]:
        """The names in its arguments, each once."""
        names = (match.group(2) for argument in self.argv for match in PLACEHOLDER.finditer(argument))
        return tuple(dict.fromkeys(name for name in names if name))

    def problems(self, parameters: Sequence[str]) -> Iterator[Problem]:
        """Placeholders that no parameter fills."""
        for name in self.placeholders:
            if name not in parameters:
                fix = f"Add --grid {name}=VALUES, or write {{{{{name}}}}} for the braces themselves"
                yield Problem("command", f"{{{name}}}", "there is no parameter of that name", fix)


def as_text(setting: Any) -> str:
    """A value as an argument: text as it is, everything else as JSON writes it."""
    return setting if isinstance(setting, str) else written(setting)


def ending(code: int, folder: TrialFolder, begin: int = 0) -> Ending:
    """How a program ended, from its exit code and from what it wrote, into its log after `begin` bytes."""
    if code != 0:
        return of_exit(code)
    has_file = folder.result.exists()
    try:
        result = _from_file(folder) if has_file else _from_log(folder, begin)
    except (ValueError, OSError) as error:
        return Ending("failed", reason=f"its result cannot be read: {error}")
    if result is None:
        return Ending("failed", reason="exit code 0, and no result: its last line must read name=value")
    if not math.isfinite(result):
        return Ending("failed", reason=f"its result is {result}")
    return Ending("complete", result, final=has_file)


def _from_file(folder: TrialFolder) -> float:
    says = json.loads(folder.result.read_text())
    if isinstance(says, dict):
        says = says.get("value", next(iter(says.values())) if len(says) == 1 else None)
    if not isinstance(says, int | float) or isinstance(says, bool):
        raise ValueError(f"{folder.result.name} must hold a number, or an object with one under 'value'")
    return float(says)


def _from_log(folder: TrialFolder, begin: int) -> float | None:
    for line in reversed(folder.tail(lines=200, begin=begin)):
        match = RESULT.fullmatch(line)
        if match:
            return float(match[2])
    return None
