import pytest

import colonnade as cn
from colonnade.sweeps.settings import SweepSettings
from colonnade.sweeps.study import conduct, open_study


def test_the_same_command_goes_on_and_more_trials_are_added(sweep, states):
    sweep("empty", trials=2, reuse=True)
    swept = sweep("empty", trials=5, reuse=True)
    assert [number for what, number in sweep.seen.lines if what == "begun"] == [2, 3, 4]
    assert states(open_study(swept.folder)) == ["COMPLETE"] * 5
    xs = [trial.params["x"] for trial in swept.study.trials]
    assert len(set(xs)) == 5


def test_another_sweep_under_the_same_name_is_refused(sweep):
    sweep("empty", trials=1, reuse=True, study="mine")
    with pytest.raises(cn.InvalidArgument, match="tries something else") as caught:
        sweep("raising", trials=1, study="mine")
    assert "--study mine-2" in str(caught.value)
    with pytest.raises(cn.InvalidArgument, match="to minimize its value"):
        sweep("empty", trials=1, study="mine", direction="maximize")
    with pytest.raises(cn.InvalidArgument, match="tries something else"):
        sweep(command=("echo", "a={a}"), grid=("a=1,2",), study="mine")


def test_nothing_is_left_behind_by_a_mistake(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for wrong in ({"objective": "no_such:thing"}, {"objective": "os:getcwd", "storage": "ftp://x"}):
        with pytest.raises(cn.InvalidArgument):
            conduct(SweepSettings(trials=1, virtual=1, **wrong))
    assert list(tmp_path.iterdir()) == []


def test_a_seed_makes_the_first_trials_repeat(sweep):
    first = sweep("empty", trials=3, virtual=1, reuse=True, seed=7, study="a")
    second = sweep("empty", trials=3, virtual=1, reuse=True, seed=7, study="b")
    assert [t.params for t in first.study.trials] == [t.params for t in second.study.trials]


def test_a_folder_that_is_no_study(tmp_path):
    with pytest.raises(cn.InvalidArgument, match="is not the folder of a study"):
        open_study(tmp_path)
    for text in ("{", "[]", "{}", "3", '{"study": 3, "storage": null}', '{"study": "a", "storage": {}}'):
        (tmp_path / "study.json").write_text(text)
        with pytest.raises(cn.InvalidArgument, match="is not the folder of a study"):
            open_study(tmp_path)
    (tmp_path / "study.json").write_text('{"study": "gone", "storage": null}')
    with pytest.raises(cn.InvalidArgument, match="'gone', which its storage does not have"):
        open_study(tmp_path)
