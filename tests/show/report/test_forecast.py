from runs import run_folder

from colonnade.describe.run_folder import read_run
from colonnade.show.report.forecast import forecast

PREDICTED = {"step": 0.005, "examples_per_second": 24_000.0, "memory": 2**23, "moved": 4 * 2**20}


def test_what_was_predicted_stands_beside_what_was_measured(tmp_path):
    run = read_run(run_folder(tmp_path / "a", predicted=PREDICTED))
    assert forecast(run) == [
        ["a step", "5 ms", "10 ms", "2.00"],
        ["examples/s", "24,000", "12,002", "0.50"],
        ["bytes moved in a step", "4.0 MiB", "4.0 MiB", "1.00"],
        ["memory of the fullest device", "8.0 MiB", "16.0 MiB", "2.00"],
    ]


def test_memory_of_which_a_part_is_not_known_is_not_compared(tmp_path):
    """Without what layers keep it would look far too small; a plan says that it is not known."""
    for known in (True, False):
        run = read_run(run_folder(tmp_path / str(known), predicted={**PREDICTED, "memory_known": known}))
        assert ("memory of the fullest device" in [row[0] for row in forecast(run)]) == known


def test_without_a_prediction_or_with_half_of_one_and_without_lines(tmp_path):
    assert forecast(read_run(run_folder(tmp_path / "a"))) == []
    bare = read_run(run_folder(tmp_path / "b", predicted={"step": 0.005, "memory": "?"}, steps=0))
    assert forecast(bare) == [["a step", "5 ms", "not known", ""]]
    assert forecast(read_run(run_folder(tmp_path / "c", predicted=["<b>"]))) == []
