from colonnade.describe.plan import Candidate, Plan, Prediction
from colonnade.describe.plan_text import duration, size


def test_a_plan_prints_its_advice_its_numbers_and_the_reasons():
    plan = Plan(
        batch=64,
        data=2,
        predicted=Prediction(0.5, 128.0, 0.9, 3 * 2**30, 2**20, 2**19),
        advice="Use 2 devices.",
        candidates=(
            Candidate("one device", "does not fit: it needs more"),
            Candidate("4 replicas", "takes 1.1 times as long", Prediction(0.55, 116.0, 0.4, 1, 1, 1)),
        ),
    )
    lines = str(plan).splitlines()
    assert lines[0] == "Use 2 devices."
    (chosen,) = [line for line in lines if line.startswith("*")]
    for cell in ("2 replicas, mirrored", "500 ms", "128", "90%", "3 GiB", "1 MiB", "512 KiB"):
        assert cell in chosen
    assert lines[lines.index("  one device") + 1].strip() == "does not fit: it needs more"
    assert lines[-1].strip() == "takes 1.1 times as long"


def test_a_plan_without_a_prediction_is_a_line():
    assert str(Plan(batch=64, data=2)) == "2 replicas, mirrored, global batch 64"


def test_units():
    assert duration(3e-7) == "0.3 us"
    assert duration(59.96) == "60 s"
    assert duration(0.00099999) == "1 ms"
    assert (duration(999.7), duration(2.5e18)) == ("1,000 s", "2.5e+18 s")
    assert size(1014 * 2**20) == "1014 MiB"
    assert size(999.9 * 2**20) == "1000 MiB"
    assert size(3 * 2**40) == "3 TiB"
