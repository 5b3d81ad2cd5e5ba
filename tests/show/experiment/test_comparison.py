from outcomes import made_up

from colonnade.experiment.design import MODES, Trial
from colonnade.show.experiment.comparison import row, rows


def test_a_row_says_what_was_measured():
    findings = made_up(
        lambda trial, rate: 0.96 if trial.mode == "synchronous" or rate == 0.5 else 0.2,
        best=lambda trial: 0.5 if trial.mode == "asynchronous" else 1.0,
    )
    found = row(findings, Trial("asynchronous", 6, "even"))
    assert (found.test_one, found.test_own, found.rate) == ("20.0%", "96.0%", "1/2")
    assert found.against_one == "-76.0 (-76.0 to -76.0)"
    assert (found.updates_one, found.updates_own) == ("never", "288")  # 48 steps of 6 updates
    assert (found.gap_own, found.spread_own, found.bytes_per_example) == ("2.0", "0.10", "400")
    assert row(findings, Trial("synchronous", 6, "even")).against_one == ""
    assert [r.mode for r in rows(findings, num_devices=2, pace="one slow")] == list(MODES)


def test_some_seeds_only():
    findings = made_up(lambda trial, rate: 0.9495)
    found = row(findings, Trial("asynchronous", 6, "even"))
    assert found.updates_own == "384 (1 of 3 seeds)"
