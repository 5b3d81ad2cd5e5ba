import os
import select
import signal

from colonnade.fleet.heard import HeardSignals


def test_what_is_ignored_stays_so():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with HeardSignals() as heard:
            os.kill(os.getpid(), signal.SIGHUP)
            os.kill(os.getpid(), signal.SIGUSR1)
            assert select.select([heard.descriptor], [], [], 5)[0] == [heard.descriptor]
            assert list(heard.taken()) == [signal.SIGUSR1]
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_signals_are_kept_in_their_order_and_end_nobody():
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTSTP)}
    with HeardSignals() as heard:
        assert list(heard.taken()) == []
        for number in (signal.SIGTERM, signal.SIGTSTP, signal.SIGINT, signal.SIGUSR1):
            os.kill(os.getpid(), number)
        assert select.select([heard.descriptor], [], [], 5)[0] == [heard.descriptor]
        assert list(heard.taken()) == [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1]
        assert list(heard.taken()) == []
    assert {number: signal.getsignal(number) for number in before} == before
