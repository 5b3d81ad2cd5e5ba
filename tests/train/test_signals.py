"""Signals end a fit between two steps; afterwards they do again what they did before."""

import os
import pty
import signal
import threading

import pytest
from lines import X, Y, linear

from colonnade.run.train.signals import Interruption, interruptible, leave_terminal


def test_ctrl_c_ends_the_fit_with_what_was_reached():
    _, trainer = linear()
    threading.Timer(1.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    history = trainer.fit((X, Y), batch_size=10, steps=10**7, progress=False)
    assert history.interrupted
    assert trainer.step == len(history.losses) > 0
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_first_signal_is_noted_and_a_second_ctrl_c_raises():
    with interruptible(preemption=False) as asked:
        assert (asked.is_set(), asked.by, asked.seconds) == (False, None, 0.0)
        signal.raise_signal(signal.SIGINT)
        assert (asked.is_set(), asked.by) == (True, signal.SIGINT)
        assert 0 <= asked.seconds < 60
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_sigterm_is_noted_only_where_it_is_asked_for_and_handlers_are_put_back():
    noticed = []
    before = signal.signal(signal.SIGTERM, lambda *_: noticed.append("outside"))
    try:
        with interruptible(preemption=False) as asked:
            signal.raise_signal(signal.SIGTERM)
        assert (noticed, asked.is_set()) == (["outside"], False)
        with interruptible(preemption=True) as asked:
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGTERM)  # a scheduler may send it again
        assert (noticed, asked.by) == (["outside"], signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        assert noticed == ["outside"] * 2
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_terminal_that_is_closed_is_as_good_as_sigterm_but_under_nohup():
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        with interruptible(preemption=True) as asked:
            os.kill(os.getpid(), signal.SIGHUP)
        assert asked.by == signal.SIGHUP
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL
        with interruptible(preemption=False) as asked:
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        with interruptible(preemption=True) as asked:
            os.kill(os.getpid(), signal.SIGHUP)
        assert not asked.is_set()
    finally:
        signal.signal(signal.SIGHUP, before)


def test_what_is_said_to_a_terminal_that_is_gone_is_no_error():
    before, (terminal, line) = os.dup(1), pty.openpty()
    os.dup2(line, 1)
    os.close(line)
    try:
        leave_terminal()
        assert os.isatty(1)
        os.close(terminal)
        with pytest.raises(OSError, match="Input/output error"):
            os.write(1, b"a step")
        leave_terminal()
        os.write(1, b"a step")
    finally:
        os.dup2(before, 1)
        os.close(before)


def test_a_signal_that_other_machines_were_not_told_of_comes_after_the_fit():
    def fit():
        with interruptible(preemption=False) as asked:
            asked.known = False
            signal.raise_signal(signal.SIGINT)
            assert not asked.ends

    with pytest.raises(KeyboardInterrupt):
        fit()
    with interruptible(preemption=False) as asked:
        asked.known = False
        signal.raise_signal(signal.SIGINT)
        asked.hear([None, asked.told()])  # now all know
        assert asked.ends


def test_of_the_signals_of_all_machines_the_first_counts():
    asked = Interruption()
    asked.known = False
    assert asked.told() is None
    assert asked.hear([None, None]) is None
    assert not asked.ends
    assert asked.hear([(signal.SIGTERM, 2.0), None, (signal.SIGINT, 5.0)]) == 5.0
    assert asked.ends
    assert asked.by == signal.SIGINT
    assert 5.0 <= asked.seconds < 6.0


def test_in_another_thread_no_signal_is_touched():
    handlers = []

    def fit():
        with interruptible(preemption=True) as asked:
            handlers.extend([signal.getsignal(signal.SIGINT), asked.is_set()])

    thread = threading.Thread(target=fit)
    thread.start()
    thread.join()
    assert handlers == [signal.getsignal(signal.SIGINT), False]
