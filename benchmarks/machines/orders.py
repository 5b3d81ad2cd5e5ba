"""A program's side of a group: who it is, and the orders that it gets."""

import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any


def place() -> tuple[int, list[str]]:
    """The rank of this program, and the addresses of all."""
    config = json.loads(os.environ["TF_CONFIG"])
    return config["task"]["index"], config["cluster"]["worker"]


def tell(**figures: Any) -> None:
    print(json.dumps(figures), flush=True)


def orders() -> Iterator[list[str]]:
    """The words of each order, until there are no more."""
    for line in sys.stdin:
        yield line.split()


def obey(does: Callable[..., dict[str, Any] | None]) -> None:
    """Say that all is ready, and do what is asked for; `does` gets the words of an order."""
    tell(ready=True)
    for words in orders():
        tell(**(does(*words) or {}))
