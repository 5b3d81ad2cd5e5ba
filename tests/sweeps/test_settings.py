import psutil
import pytest

import colonnade as cn
from colonnade.fleet.lease import Pool, ask
from colonnade.sweeps.settings import SweepSettings, checked


def wrong(**options):
    with pytest.raises(cn.InvalidArgument) as caught:
        checked(SweepSettings(**{"virtual": 2, **options}))
    return [problem.argument for problem in caught.value.problems]


GOOD = {"objective": "train:objective", "trials": 5, "virtual": 2}


@pytest.mark.parametrize(
    ("options", "argument"),
    [
        ({"trials": None}, "--trials"),
        ({"trials": 0}, "--trials"),
        ({"cards": 3}, "--cards"),
        ({"cards": 0}, "--cards"),
        ({"virtual": 0}, "--virtual"),
        ({"memory": "2"}, "--memory"),
        ({"direction": "up"}, "--direction"),
        ({"timeout": "soon"}, "--timeout"),
        ({"timeout": "0"}, "--timeout"),
        ({"stall": "-1"}, "--stall"),
        ({"sampler": "magic"}, "--sampler"),
        ({"pruner": "magic"}, "--pruner"),
        ({"retries": -1}, "--retries"),
        ({"seed": -1}, "--seed"),
        ({"study": "../up"}, "--study"),
        ({"grid": ("a=1",)}, "--grid"),
        ({"objective": None}, "objective"),
    ],
)
def test_what_cannot_work(options, argument):
    assert wrong(**{**GOOD, **options}) == [argument]


def test_commands_that_cannot_work():
    assert wrong(command=("no-such-program", "{x}"), grid=("y=1",)) == ["command", "command"]
    assert wrong(command=("true",), trials=3) == ["--grid"]
    assert wrong(command=("true",), grid=("y=",)) == ["--grid"]
    assert wrong(command=("true",), grid=("y=1",), reuse=True) == ["--reuse"]


def test_all_that_is_wrong_comes_at_once():
    assert wrong(objective="a:b", trials=0, cards=9, memory="x", timeout="x") == [
        "--cards",
        "--memory",
        "--trials",
        "--timeout",
    ]


def test_a_sweep_under_a_lease_does_not_wait_for_itself(tmp_path, monkeypatch):
    monkeypatch.setattr(psutil.Process, "parents", lambda self: [psutil.Process()])
    with ask(Pool(("virtual:0", "virtual:1")), 2, directory=tmp_path / "leases") as lease:
        lease.wait()
        with pytest.raises(cn.InvalidArgument, match="would wait for its own end"):
            checked(SweepSettings(**GOOD, leases=tmp_path / "leases"))


def test_slots_follow_from_cards_and_their_shares():
    def slots(**options):
        return checked(SweepSettings(**{**GOOD, **options})).most

    assert slots(virtual=4) == 4
    assert slots(virtual=5, cards=2) == 2
    assert slots(virtual=2, memory="0.5") == 4
    assert slots(virtual=2, memory="0.4") == 4


def test_without_cards_every_core_is_a_virtual_one(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1, 2})
    assert checked(SweepSettings(**{**GOOD, "virtual": None})).share.virtual == 3


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"objective": "train:objective"}, "train-objective"),
        ({"objective": "folder/train.py:goal"}, "train-goal"),
        ({"command": ("python", "some/train.py", "--x")}, "train"),
        ({"command": ("./run.sh", "{x}")}, "run"),
        ({"objective": "a:b", "study": "mine"}, "mine"),
    ],
)
def test_names_of_studies(options, name):
    assert SweepSettings(**options).name == name


def test_time_spans():
    sweep = checked(SweepSettings(**GOOD, timeout="2h", stall="3"))
    assert (sweep.timeout, sweep.stall) == (7200, 180)


def test_a_grid_is_as_large_as_wanted():
    command = {"command": ("true", "{a}"), "grid": ("a=1,2,3", "b=1,2"), "virtual": 2}
    assert checked(SweepSettings(**command)).search.trials == 6
    few = checked(SweepSettings(**command, trials=4, sampler="random", seed=1)).search
    assert len(few.grid) == 4 == len({str(one) for one in few.grid})
