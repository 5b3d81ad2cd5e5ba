import sys

import pytest

import colonnade as cn
from colonnade.sweeps.objective import check_importable, load, named


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])

    def write(name, text):
        (tmp_path / f"{name}.py").write_text(text)
        sys.modules.pop(name, None)

    return write


def test_by_module_and_by_script(here):
    here("goal_a", "def objective(trial):\n    return 1\nif __name__ == '__main__':\n    raise SystemExit\n")
    assert load("goal_a:objective")(None) == 1
    assert load("goal_a.py:objective")(None) == 1


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("goal_b", "must be module:function"),
        ("goal_b:nothing", "goal_b has no 'nothing'"),
        ("goal_b:number", "is a int, not a function"),
        ("no_such_module:objective", "there is no module 'no_such_module'"),
        ("no_such_file.py:objective", "there is no file"),
        ("goal_broken:objective", r"importing goal_broken failed: ZeroDivisionError.*goal_broken.py:2"),
    ],
)
def test_what_cannot_be_found(here, name, says):
    here("goal_b", "number = 1\ndef objective(trial): pass\n")
    here("goal_broken", "\n1 / 0\n")
    with pytest.raises(cn.InvalidArgument, match=says):
        load(name)


def test_it_is_tried_in_a_process_of_its_own(here):
    here("goal_c", "import os\nprint('noise')\ndef objective(trial): pass\n")
    check_importable("goal_c:objective")
    with pytest.raises(cn.InvalidArgument, match="It has: objective"):
        check_importable("goal_c:objectiv")
    here("goal_c", "import os\nos._exit(3)\n")
    with pytest.raises(cn.InvalidArgument, match=r"ended the process \(exit code 3\)"):
        check_importable("goal_c:objective")
    assert "goal_c" not in sys.modules


def test_names_of_functions():
    assert named(load) == "colonnade.sweeps.objective:load"
    with pytest.raises(cn.InvalidArgument, match="import by its name"):
        named(lambda trial: 1)
    typed, scripted = {"__name__": "__main__"}, {"__name__": "__main__", "__file__": "/a/train.py"}
    for space in (typed, scripted):
        exec("def objective(trial): pass", space)
    assert named(scripted["objective"]) == "/a/train.py:objective"
    with pytest.raises(cn.InvalidArgument, match="was typed in"):
        named(typed["objective"])
