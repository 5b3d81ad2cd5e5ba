"""What stands in a fit in place of a saver where nothing is saved, so that the fit need not ask."""

import sys
from types import TracebackType
from typing import Any

from colonnade.run.data.fit_data import FitData
from colonnade.run.engine.history import Record
from colonnade.run.engine.protocols import Steps, Stream

# As many steps as no fit makes.
NEVER = sys.maxsize


class NoSaver:
    """Saves nothing, and has nothing to go on from; otherwise as `Saver`, which says what is what."""

    over = False
    stalled = 0.0
    saves: tuple[Any, ...] = ()

    def __enter__(self) -> "NoSaver":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def stream(self, loop: Steps, data: FitData, limit: int | None) -> Stream:
        return loop.stream(data, limit)

    def start(self, step: int) -> None:
        return None

    def until_save(self, step: int) -> int:
        return NEVER

    def can_end(self, step: int, waited: float) -> bool:
        return True

    def after(self, record: Record, *, resting: bool, stopped: bool) -> None:
        pass

    def finish(self, *, stopped: bool) -> None:
        pass

    def ended(self, *, interrupted: bool) -> None:
        pass
