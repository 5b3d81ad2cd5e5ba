from colonnade.hardware.clusters.meeting import IN_STEPS
from colonnade.run.machines.call_pace import FIRST_CALLS, CallPace


def test_the_first_call_says_nothing_of_those_that_follow():
    """It prepares the graph."""
    pace = CallPace()
    assert pace.patience == FIRST_CALLS
    pace.note(60.0)
    assert pace.patience == FIRST_CALLS
    pace.note(0.5)
    assert pace.patience == 0.5 + IN_STEPS


def test_slow_steps_are_given_three_of_them_and_their_own_time():
    pace = CallPace()
    for seconds in (1.0, 4.0, 20.0, 2.0):
        pace.note(seconds)
    assert pace.patience == 80.0


def test_batches_of_many_sizes_in_one_graph_say_nothing_of_the_next():
    pace = CallPace(steady=False)
    for _ in range(9):
        pace.note(0.1)
    assert pace.patience == FIRST_CALLS
