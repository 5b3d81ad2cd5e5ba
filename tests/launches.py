"""Two programs that want the same directory at the same moment; needs no TensorFlow, so a race is cheap."""

import os
import signal
import sys
from pathlib import Path

from colonnade.errors import CheckpointInUse
from colonnade.run.checkpoint.lock import owned

REFUSED = 3


def race(folder: Path, *, killed: bool) -> int:
    """How many of two got the directory; the other must be told who did. A kill must set it free."""
    folder.mkdir()
    go_read, go_write = os.pipe()
    done_read, done_write = os.pipe()
    racers = [_start(folder, go_read, go_write, done_read, done_write) for _ in range(2)]
    os.close(go_read)
    os.close(go_write)  # both see the end of the pipe, and go
    pid, code = os.wait()  # the one that is refused; the other waits for it
    assert os.waitstatus_to_exitcode(code) == REFUSED
    (winner,) = (racer for racer in racers if racer != pid)
    assert (folder / f"{pid}.told").read_text() == str(winner)
    os.close(done_read)
    if killed:
        os.kill(winner, signal.SIGKILL)
    os.close(done_write)
    code = os.waitstatus_to_exitcode(os.waitpid(winner, 0)[1])
    assert code == (-signal.SIGKILL if killed else 0)
    with owned(folder / "run"):
        return 1


def _start(folder: Path, go_read: int, go_write: int, done_read: int, done_write: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.close(go_write)
        os.close(done_write)
        os.read(go_read, 1)
        (folder / "run").mkdir(exist_ok=True)
        try:
            with owned(folder / "run"):
                os.read(done_read, 1)
            code = 0
        except CheckpointInUse as refused:
            (folder / f"{os.getpid()}.told").write_text(str(refused.pid))
            code = REFUSED
    finally:
        sys.stderr.flush()
        os._exit(code)


def main(folder: str, count: str) -> None:
    print(sum(race(Path(folder) / str(number), killed=number % 3 == 0) for number in range(int(count))))


if __name__ == "__main__":
    main(*sys.argv[1:])
