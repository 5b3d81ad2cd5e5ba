import json

import pytest

from colonnade.describe.plan import Candidate, Plan, Prediction, even_stages, spans
from colonnade.describe.timeline import Event, Timeline
from colonnade.errors import InvalidArgument

FULL = Plan(
    batch=64,
    data=2,
    stage=2,
    micro_batches=4,
    layers=(0, 0, 1),
    predicted=Prediction(1.0, 64.0, 0.5, 100, 10, 5),
    advice="Use 4 devices.",
    candidates=(
        Candidate("one device", "does not fit"),
        Candidate("2 stages", "slower", Prediction(2.0, 1, 1, 1, 1, 1)),
    ),
)


def test_json_both_ways():
    assert Plan.from_json(FULL.to_json()) == FULL


def test_a_timeline_is_no_part_of_the_json():
    drawn = FULL.with_(timeline=Timeline.of([Event("device 0", 0.0, 1.0, "forward")]))
    assert drawn == FULL
    assert drawn.to_json() == FULL.to_json()
    assert "forward" not in repr(drawn)
    with pytest.raises(InvalidArgument, match="a timeline has a file of its own"):
        Plan.from_json(json.dumps({**json.loads(FULL.to_json()), "timeline": {"events": []}}))


def test_devices_are_in_the_order_of_the_axes():
    plan = Plan(batch=8, data=2, stage=2, width=2)
    assert plan.devices == tuple(range(8))
    assert [plan.device(d, s, w) for d in (0, 1) for s in (0, 1) for w in (0, 1)] == list(range(8))
    assert Plan(batch=8, data=2, devices=(5, 3)).device(1) == 3


def test_all_that_is_wrong_comes_in_one_error():
    with pytest.raises(InvalidArgument) as error:
        Plan(batch=0, data=-1, schedule="2f2b", sync="never", alpha=float("nan"))
    assert {p.argument for p in error.value.problems} == {"batch", "data", "schedule", "sync", "alpha"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"devices": (0, 0)},
        {"devices": (0,)},
        {"devices": "01"},
        {"devices": (0, -1)},
        {"sharded": ("weights",)},
        {"batch": 1},
        {"stage": 2, "layers": (0, 0)},
        {"stage": 2, "layers": (1, 0)},
        {"stage": 2, "layers": (1, 2)},
        {"stage": 2, "layers": 7},
        {"predicted": 3.0},
        {"predicted": Prediction(float("nan"), 1, 1, 1, 1, 1)},
        {"candidates": 3},
        {"candidates": (3,)},
        {"candidates": (Candidate("a", 3),)},  # type: ignore[arg-type]
    ],
)
def test_plans_that_are_none(wrong):
    with pytest.raises(InvalidArgument, match="Plan"):
        Plan(**{"batch": 8, "data": 2, **wrong})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda plain: plain.update(colour=1), "colour"),
        (lambda plain: plain["predicted"].update(luck=1), r"predicted\.luck"),
        (lambda plain: plain["candidates"][0].pop("reason"), r"candidates\[0\]\.reason"),
        (lambda plain: plain.update(version="1"), "version"),
        (lambda plain: plain.update(candidates=None), "candidates"),
        (lambda plain: plain.update(data=[2]), "data"),
    ],
)
def test_json_that_says_something_else_is_refused(change, said):
    plain = json.loads(FULL.to_json())
    change(plain)
    with pytest.raises(InvalidArgument, match=said):
        Plan.from_json(json.dumps(plain))


@pytest.mark.parametrize(
    ("plan", "word"),
    [
        (Plan(batch=8), ""),
        (Plan(batch=8, data=2), ""),
        (Plan(batch=8, data=2, stage=2, micro_batches=2), ""),
        (Plan(batch=8, data=2, variables="partitioned", sharded=("slots", "parameters")), ""),
        (Plan(batch=8, data=2, variables="partitioned", sharded=("slots",)), "divides"),
        (Plan(batch=8, width=2), "width"),
        (Plan(batch=8, stage=2, micro_batches=2, recompute="full"), "recompute"),
        (Plan(batch=8, stage=2, micro_batches=2, chunks=2), "stage per device"),
        (Plan(batch=8, data=2, sequence=True), "sequences"),
        (Plan(batch=8, data=2, stage=2, sync="local"), "lockstep"),
        (Plan(batch=8, data=2, micro_batches=2), "one piece"),
        (Plan(batch=8, data=2, reduce="ring"), "order"),
        (Plan(batch=8, data=2, sync="asynchronous", variables="shared"), ""),
        (Plan(batch=8, data=2, sync="asynchronous"), "share the variables"),
        (Plan(batch=8, data=2, sync="local"), ""),
        (Plan(batch=8, data=2, sync="diloco", variables="partitioned"), "mirrored"),
        (Plan(batch=64, data=18, sync="elastic"), ""),
        (Plan(batch=64, data=19, sync="elastic"), "19 replicas"),
    ],
)
def test_what_the_engine_cannot_run_says_why(plan, word):
    assert word in plan.not_runnable
    assert bool(word) == bool(plan.not_runnable)


def test_layouts_in_words():
    assert Plan(batch=8).layout == "one device"
    assert Plan(batch=8, data=4, sync="diloco", every=8).layout == "4 replicas, diloco every 8"
    assert Plan(batch=8, width=2, recompute="full").layout == "layers 2 wide, full recomputing"


def test_even_stages_cover_all_layers():
    for layers in range(1, 9):
        for stages in range(1, layers + 1):
            dealt = even_stages(layers, stages)
            assert len(dealt) == layers
            sizes = [end - begin for begin, end in spans(dealt, stages)]
            assert sum(sizes) == layers
            assert max(sizes) - min(sizes) <= 1


def test_in_a_notebook():
    html = FULL._repr_html_()
    assert "Use 4 devices." in html
    for word in ("2 replicas of 2 stages", "1000.00", "one device", "does not fit", "2 stages", "2000.00"):
        assert word in html


def test_in_a_notebook_few_layouts_are_shown_and_the_others_folded_away():
    many = FULL.with_(candidates=tuple(Candidate(f"layout {i}", f"<why {i}>") for i in range(9)))
    shown, _, folded = many._repr_html_().partition("<details>")
    assert [f"layout {i}" in shown for i in range(9)] == [True] * 4 + [False] * 5
    assert all(f"&lt;why {i}&gt;" in folded for i in range(9))
    assert "<details>" not in FULL.with_(candidates=())._repr_html_()
