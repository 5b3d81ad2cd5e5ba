"""What a check of `colonnade doctor` found."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Finding:
    """What a check found. Only `blocks` keeps work from starting; `unknown` could not be looked at."""

    check: str
    state: Literal["good", "note", "blocks", "unknown"]
    found: str
    why: str
    remedy: str = ""
