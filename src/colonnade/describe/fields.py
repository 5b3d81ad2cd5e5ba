"""Checks plain data that comes from outside, field by field: what JSON holds, what a noun is made from.

A noun lists a `Rule` for each of its fields. The same rules judge what a program passes and what a JSON text
says, so neither can make what the other would refuse.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any

from colonnade.errors import InvalidArgument, Problem, is_whole

# A text that holds more would not be read in reasonable time, and no noun needs so much.
LONGEST = 2**28
# No step has more FLOPs or seconds than this.
LARGEST = 1e30


@dataclass(frozen=True)
class Rule:
    """What the value of a field must be, in code and in words."""

    holds: Callable[[Any], bool]
    words: str
    fix: str


def number(value: Any) -> bool:
    """Whether a value is a number from 0 up, and not so large that sums and products of such have no end."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return 0 <= value <= LARGEST  # which NaN is not


def optional(rule: Rule) -> Rule:
    """None is good as well."""
    return Rule(lambda v: v is None or rule.holds(v), f"{rule.words}, or None", rule.fix)


def whole_from(least: int, most: int = 2**62) -> Rule:
    words = f"must be a whole number from {least} up" + (f", at most {most}" if most < 2**62 else "")
    return Rule(lambda v: is_whole(v, least, most), words, f"Try {max(least, 1)}")


def one_of(*words: str) -> Rule:
    return Rule(
        lambda v: isinstance(v, str) and v in words, f"must be one of {', '.join(words)}", "Leave it out"
    )


TEXT = Rule(lambda v: isinstance(v, str), "must be text", "Use a name")
NUMBER = Rule(number, "must be a number, 0 or more", "Use bytes, seconds and FLOPs")
POSITIVE = Rule(lambda v: number(v) and v > 0, "must be a number above 0", "Use bytes, seconds and FLOPs")
BYTES = Rule(lambda v: is_whole(v, 0, 2**62), "must be a whole number of bytes, 0 or more", "Round it up")
FLAG = Rule(lambda v: isinstance(v, bool), "must be True or False", "Leave it out")


def amiss(rules: Mapping[str, Rule], values: Mapping[str, Any], at: str = "") -> Iterator[Problem]:
    """What is wrong with the values of fields; `at` says where they are, such as `layers[3].`."""
    for name, rule in rules.items():
        if name in values and not rule.holds(values[name]):
            yield Problem(f"{at}{name}", shown(values[name]), rule.words, rule.fix)


def strangers(noun: type, plain: Any, at: str = "") -> Iterator[Problem]:
    """Fields that a noun does not have, and those that it needs and were left out."""
    if not isinstance(plain, dict):
        name = at.rstrip(".") or "text"
        yield Problem(name, shown(plain), "must be an object with named fields", "Write it with to_json()")
        return
    known = {field.name: field for field in fields(noun)}
    listed = ", ".join(known)
    for name in plain.keys() - known.keys():
        yield Problem(f"{at}{name}", shown(plain[name]), "is no field here", f"One of: {listed}")
    for name, field in known.items():
        if name not in plain and field.default is MISSING and field.default_factory is MISSING:
            yield Problem(f"{at}{name}", None, "is missing", "Write it with to_json()")


def loaded(text: Any, where: str, version: int) -> dict[str, Any]:
    """The object in a JSON text of this version, without the version; else an error."""

    def refuse(value: object, rule: str) -> InvalidArgument:
        return InvalidArgument(where, [Problem("text", shown(value), rule, "Write it again with to_json()")])

    def not_json(word: str) -> float:
        raise ValueError(f"{word} is no number")

    if not isinstance(text, str) or len(text) > LONGEST:
        raise refuse(text, "must be a text of JSON")
    try:
        plain = json.loads(text, parse_constant=not_json)
    except (ValueError, RecursionError) as error:
        raise refuse(text, f"is not JSON ({str(error)[:80]})") from None
    if not isinstance(plain, dict):
        raise refuse(text, "must be an object of JSON")
    if plain.get("version") != version or isinstance(plain["version"], bool):
        raise InvalidArgument(
            where,
            [
                Problem(
                    "version",
                    shown(plain.get("version")),
                    f"must be {version}: a text of another version means other things",
                    f"Write it again with this version of Colonnade (format {version})",
                )
            ],
        )
    del plain["version"]
    return plain


def items(plain: Mapping[str, Any], name: str) -> tuple[list[Any], list[Problem]]:
    """The list in a field, and what is wrong if there is none."""
    value = plain.get(name)
    if isinstance(value, list | tuple):
        return list(value), []
    return [], [Problem(name, shown(value), "must be a list", "Write it with to_json()")]


def shown(value: object) -> object:
    """A value as a message shows it: long ones are cut."""
    if isinstance(value, bool | float) or value is None:
        return value
    if isinstance(value, int):
        return value if abs(value) < 10**18 else "a number of more than 18 digits"
    text = value if isinstance(value, str) else repr(value)[:80]
    return text if len(text) < 60 else text[:60] + "..."
