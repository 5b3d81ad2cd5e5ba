"""A fit without a checkpoint: what saves nothing never holds it up, and has nothing to go on from."""

import inspect

from colonnade.run.checkpoint.no_saver import NoSaver
from colonnade.run.checkpoint.saver import Saver


def test_it_never_holds_a_fit_up():
    with NoSaver() as saver:
        assert saver.start(0) is None
        assert saver.until_save(10**9) > 10**9
        assert saver.can_end(3, waited=0.0)
        assert (saver.over, saver.stalled) == (False, 0.0)


def test_it_can_be_asked_whatever_a_saver_can_be_asked_by_a_fit():
    for name, method in inspect.getmembers(NoSaver, inspect.isfunction):
        if not name.startswith("__"):
            assert inspect.signature(method).parameters == inspect.signature(getattr(Saver, name)).parameters
