from collections import Counter

import pytest

from colonnade.sweeps.board import BestTrial, Board, RunningTrial, StudyState
from colonnade.sweeps.slots.ending import Ending


def running(number, **params):
    return RunningTrial(number, ("virtual:0",), params)


@pytest.mark.parametrize(("maximize", "best"), [(False, 0), (True, 1)])
def test_the_best_follows_the_direction(maximize, best):
    board = Board("a", 3, maximize)
    for number, value in enumerate((1.0, 2.0)):
        board.end(running(number, x=value), Ending("complete", value))
    assert board.best.number == best


def test_what_was_cut_is_not_finished():
    board = Board("a", 3, maximize=False)
    board.running[0] = running(0)
    board.end(board.running[0], Ending("cut"))
    assert (board.finished, board.running) == (0, {})


def test_time_left_is_that_of_the_trials_left():
    board = Board("a", 11, maximize=False, slots=2)
    assert board.seconds_left is None
    board.lasted.append(4.0)
    board.take(StudyState(Counter(complete=1), BestTrial(0, 1.0, {})))
    assert board.seconds_left == pytest.approx(20.0)
