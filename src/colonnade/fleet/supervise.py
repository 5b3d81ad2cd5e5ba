"""Runs one program: passes signals on to it, ends all it started, returns its exit code.

Three processes, all in the launcher's process group, so that a terminal's Ctrl-C and Ctrl-Z reach the
program as if it had been started from the shell:

    launcher     passes on the signals that are sent to it and waits
    └─ supervisor   adopts whatever the program leaves behind; outlives a killed launcher to end it all
       └─ program      dies with the supervisor

The launcher killed: the supervisor ends the program and all its descendants. The supervisor killed: the
kernel kills the program, and the launcher, to which the rest falls, ends that. Both killed in the same
instant: the kernel still kills the program; only what the program itself started can survive, and it
keeps the lease as long as it holds the descriptor that it inherited. Linux only.
"""

import contextlib
import ctypes
import errno
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import psutil

GRACE = 3.0  # seconds between asking a process to end and killing it
SET_PDEATHSIG, SET_CHILD_SUBREAPER = 1, 36  # from linux/prctl.h
SI_KERNEL = 0x80  # the origin of a signal from a terminal, which the whole process group got already
END = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT}
PASSED_ON = END | {signal.SIGUSR1, signal.SIGUSR2, signal.SIGTSTP, signal.SIGCONT}
ORPHANED = signal.SIGRTMIN + 1  # to the supervisor, from the kernel: the launcher is dead


@dataclass(frozen=True)
class Exit:
    """How a program ended: its exit code, 128 + n after signal n; and whether somebody told it to end."""

    code: int
    interrupted: bool


def supervise(command: Sequence[str], environment: Mapping[str, str], *keep: int) -> Exit:
    """Run a command to its end. It inherits the descriptors `keep`. Raises OSError if it cannot start.

    Call it from a process that has no other thread and no other child: it forks, and ends all its children.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # where it is ignored, no child can be waited for
    before = signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON | {signal.SIGCHLD})
    adopt_orphans()
    sys.stdout.flush()
    sys.stderr.flush()
    answer, write = os.pipe()
    launcher, supervisor = os.getpid(), os.fork()
    if supervisor == 0:
        _become_supervisor(lambda: _Program(command, environment, keep, before), launcher, write)
    os.close(write)
    try:
        with open(answer, "rb") as file:
            failure = file.read()
        outcome = _wait(supervisor)
        end_descendants()
        if failure:
            raise OSError(int(failure), os.strerror(int(failure)), command[0])
        return outcome
    finally:
        _prctl(SET_CHILD_SUBREAPER, 0)
        while signal.sigtimedwait(PASSED_ON, 0):
            pass  # what arrived after the end is for nobody
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _wait(supervisor: int) -> Exit:
    """Pass signals on until the supervisor has ended."""
    interrupted = False
    while True:
        arrived = signal.sigwaitinfo(PASSED_ON | {signal.SIGCHLD})
        if arrived.si_signo == signal.SIGCHLD:
            pid, status = os.waitpid(supervisor, os.WNOHANG)
            if pid:
                return Exit(_code(status), interrupted)
            continue
        interrupted = interrupted or arrived.si_signo in END
        if arrived.si_code != SI_KERNEL:
            os.kill(supervisor, arrived.si_signo)
        if arrived.si_signo == signal.SIGTSTP:
            _stop()


def _stop() -> None:
    """Stop as the program does, so that the shell sees its job stopped.

    By the same signal: where no shell could continue the process group, the kernel stops nobody.
    """
    os.kill(os.getpid(), signal.SIGTSTP)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTSTP})
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTSTP})


class _Program:
    """The program, as a child of the supervisor."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        keep: tuple[int, ...],
        mask: Collection[int],
    ) -> None:
        supervisor = os.getpid()

        def prepare() -> None:
            _prctl(SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != supervisor:  # it died before the line above
                os._exit(os.EX_OSERR)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

        # Kept, because a Popen that goes away waits for its process, and its exit code is lost.
        self._started = subprocess.Popen(command, env=environment, pass_fds=keep, preexec_fn=prepare)
        self.pid = self._started.pid
        self.code: int | None = None

    def reap(self) -> None:
        """Wait for all that has ended: adopted orphans, and the program itself."""
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == self.pid:
                    self.code = _code(ended[1])


def _become_supervisor(start: Callable[[], _Program], launcher: int, write: int) -> None:
    """Be the supervisor in a process of its own; does not return."""
    code = os.EX_SOFTWARE
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        _prctl(SET_PDEATHSIG, ORPHANED)
        adopt_orphans()
        try:
            program = start()
        except OSError as error:
            os.write(write, str(error.errno or errno.EIO).encode())
        else:
            os.close(write)
            code = _oversee(program, launcher)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _oversee(program: _Program, launcher: int) -> int:
    """Pass on what the launcher passes on; when the program or the launcher is gone, end the rest."""
    while program.code is None and os.getppid() == launcher:
        arrived = signal.sigwaitinfo(PASSED_ON | {signal.SIGCHLD, ORPHANED})
        program.reap()
        if program.code is None and arrived.si_pid == launcher and arrived.si_signo in PASSED_ON:
            os.kill(program.pid, arrived.si_signo)
    end_descendants()
    return os.EX_SOFTWARE if program.code is None else program.code


def adopt_orphans() -> None:
    """Become the parent of whatever a descendant leaves behind, so that `end_descendants` finds it."""
    _prctl(SET_CHILD_SUBREAPER, 1)


def die_with(parent: int) -> None:
    """Be killed by the kernel when `parent`, which started this process, is gone; at once if it is."""
    _prctl(SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def end_descendants() -> None:
    """End every descendant of this process but those that we may not end.

    An orphan falls to this process, so having no child left means that nothing is left.
    """
    deadline = time.monotonic() + GRACE
    asked: set[psutil.Process] = set()
    beyond: set[psutil.Process] = set()  # another user's, as after sudo
    while _has_children():
        rest = set(psutil.Process().children(recursive=True)) - beyond
        for process in rest:
            try:
                if time.monotonic() > deadline:
                    process.kill()
                elif process not in asked:
                    asked.add(process)
                    process.terminate()
                    process.resume()  # a stopped process does not hear
            except psutil.NoSuchProcess:
                continue
            except psutil.AccessDenied:
                beyond.add(process)
        if beyond and not rest:
            return
        time.sleep(0.01)


def _has_children() -> bool:
    """Whether any child is left, once those that have ended are waited for."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def _code(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


_libc = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")
