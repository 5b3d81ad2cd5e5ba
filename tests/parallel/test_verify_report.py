"""What `verify` tells, in words and as JSON."""

import json

from colonnade.run.parallel.verify_report import CAUSES, Comparison, Report

DEVICES = ("/device:CPU:0", "/device:CPU:1")
SAME = Comparison("output", 12, 1e-8, 1e-6)
OTHER = Comparison("gradient of w:0", 12, float("inf"), 1e-6, "statistics")


def test_it_is_true_if_all_is_equal():
    assert Report(DEVICES, (SAME, SAME))
    assert not Report(DEVICES, (SAME, OTHER))


def test_causes_come_once_and_in_the_order_of_the_rows():
    mean = Comparison("output", 11, 1.0, 1e-6, "mean")
    assert Report(DEVICES, (OTHER, SAME, mean, OTHER)).causes == ("statistics", "mean")


def test_the_table_says_what_differs_and_why():
    said = str(Report(DEVICES, (SAME, OTHER), left_out=(11,)))
    assert "2 devices and one: not the same function." in said
    assert "NO: statistics" in said
    assert CAUSES["statistics"] in said
    assert "A batch of 11 was left out" in said
    assert "2 devices and one: equal." in str(Report(DEVICES, (SAME,)))


def test_json_has_no_number_that_json_does_not_know():
    told = json.loads(Report(DEVICES, (SAME, OTHER), left_out=(11,)).to_json())
    assert (told["equal"], told["causes"], told["left_out"]) == (False, ["statistics"], [11])
    assert [row["difference"] for row in told["rows"]] == [1e-8, None]


def test_in_a_notebook():
    rows = (Comparison("<w>", 4, 1e-7, 1e-5), Comparison("b", 4, 0.5, 1e-5, "mean"))
    html = Report(("CPU:0", "CPU:1"), rows, left_out=(3,))._repr_html_()
    assert "2 devices and one: not the same function" in html
    assert "&lt;w&gt;" in html
    assert "NO: mean" in html
    assert "A batch of 3 was left out" in html
    assert "2 devices and one: equal" in Report(("CPU:0", "CPU:1"), rows[:1])._repr_html_()
