from colonnade.hardware.clusters.meeting import IN_STEPS
from colonnade.run.machines.call_pace import FIRST_CALLS, RECENT, CallPace


def test_the_first_call_says_only_that_the_second_takes_no_longer():
    """It prepares the graph."""
    pace = CallPace()
    assert pace.patience == FIRST_CALLS
    pace.note(60.0)
    assert pace.patience == 60.0 + 180.0
    assert pace.longest == 0  # who is silent is not judged by it
    pace.note(0.5)
    assert pace.patience == 0.5 + IN_STEPS
    pace = CallPace()
    pace.note(200.0)
    assert pace.patience == FIRST_CALLS


def test_a_step_that_waited_once_is_forgotten():
    """As for the data of another machine; a machine that hangs later is not given as long."""
    pace = CallPace()
    for seconds in (3.0, 0.1, 90.0):
        pace.note(seconds)
    assert (pace.longest, pace.patience) == (90.0, 360.0)
    for _ in range(RECENT):
        pace.note(0.1)
    assert (pace.longest, pace.patience) == (0.1, 0.1 + IN_STEPS)


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
