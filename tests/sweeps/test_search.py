import optuna
import pytest
from optuna.distributions import FloatDistribution, IntDistribution

from colonnade.sweeps import search
from colonnade.sweeps.search import Search


def test_a_grid_has_every_combination_once():
    values, amiss = search.grid(["rate=0.1,0.01", "kind=adam,sgd", "deep=true,null"])
    assert amiss == []
    assert values == {"rate": [0.1, 0.01], "kind": ["adam", "sgd"], "deep": [True, None]}
    every = search.combinations(values, "grid", None)
    assert len(every) == 8 == len({str(one) for one in every})
    shuffled = search.combinations(values, "random", 3)
    assert shuffled != every
    assert sorted(map(str, shuffled)) == sorted(map(str, every))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("rate=", "no values"),
        ("rate", "no values"),
        ("=1,2", "name of a parameter"),
        ("a=1,1", "twice"),
        ("a=1,true", "twice"),
    ],
)
def test_bad_grids(text, says):
    _, amiss = search.grid([text])
    assert any(says in problem.rule for problem in amiss)


def test_a_parameter_twice():
    assert "there twice" in search.grid(["a=1", "a=2"])[1][0].rule


def test_ranges():
    space, amiss = search.ranges(["rate=1e-4..1e-1:log", "width=16..256", "shift=-1.5..2"])
    assert amiss == []
    assert space == {
        "rate": FloatDistribution(1e-4, 1e-1, log=True),
        "width": IntDistribution(16, 256),
        "shift": FloatDistribution(-1.5, 2),
    }


@pytest.mark.parametrize("text", ["rate=1", "rate=2..1", "rate=a..b", "rate=0..1:log", "rate=1..2:cubic"])
def test_bad_ranges(text):
    _, amiss = search.ranges([text])
    assert [problem.argument for problem in amiss] == ["--range"]


@pytest.mark.parametrize("setting", ["adam", "64", "true", "a b", "", 0.1, 1e-10, 64, True, None, '"quoted"'])
def test_what_is_written_reads_as_the_same(setting):
    read = search.value(search.written(setting))
    assert read == setting
    assert type(read) is type(setting)


def test_a_seed_gives_every_trial_draws_of_its_own():
    def draw(number, seed):
        study = optuna.create_study(sampler=Search(9, "random", seed).sampler(number))
        return study.ask().suggest_float("x", 0, 1)

    assert draw(1, 5) == draw(1, 5)
    assert len({draw(number, seed) for number in range(3) for seed in range(3)}) == 9


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_names_of_samplers_and_pruners():
    assert [p.argument for p in search.search_problems("magic", "magic")] == ["--sampler", "--pruner"]
    assert list(search.search_problems("tpe", "hyperband")) == []
    for name in search.PRUNERS:
        assert isinstance(search.pruner(name), optuna.pruners.BasePruner)
