"""How this program is about to end, as far as one can tell in the last moment before it does.

Python calls no hook for `sys.exit(...)`, and what is called at exit is not told the code. So `sys.exit` notes
what it is given. Somebody may still catch its exception and go on: then the outermost frame of the program
comes to its own end, by a return, which is seen from the instruction that it ended with.
"""

import dis
import functools
import signal
import sys
import threading
from types import FrameType
from typing import Any, NoReturn

from colonnade.errors import RESUMABLE


class ProgramEnd:
    """The end of the program whose outermost frame this is.

    Args:
        outermost: the frame of the main thread that has no other around it.
    """

    def __init__(self, outermost: FrameType | None) -> None:
        self._outermost = outermost
        self._code: Any = None

    @classmethod
    def watched(cls) -> "ProgramEnd":
        """That of this program; from now on `sys.exit` notes what it is given."""
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        while frame is not None and frame.f_back is not None:
            frame = frame.f_back
        end, leave = cls(frame), sys.exit

        @functools.wraps(leave)
        def noting(code: Any = None, /) -> NoReturn:
            if threading.current_thread() is threading.main_thread():
                end.note(code)
            leave(code)

        sys.exit = noting
        return end

    def note(self, code: Any) -> None:
        """The program is told to end so."""
        self._code = code

    @property
    def failure(self) -> str | None:
        """What is wrong, if the program ends by `sys.exit` for a reason that would be there again."""
        code = self._code
        if code is None or code in (0, RESUMABLE) or self._returned:
            return None
        if isinstance(code, int):
            by_signal = code - 128 in signal.valid_signals()
            return None if by_signal else f"it ended with exit code {code}"
        return f"it ended with: {str(code).partition(chr(10))[0]}"

    @property
    def _returned(self) -> bool:
        """Whether the program has come to its own end."""
        frame = self._outermost
        if frame is None or frame.f_lasti < 0:
            return False
        last = dis.opname[frame.f_code.co_code[frame.f_lasti]]
        return last.startswith("RETURN")
