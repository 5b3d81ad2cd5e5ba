from dataclasses import replace
from itertools import islice

import pytest

import colonnade as cn
from colonnade.experiment.design import Design
from colonnade.experiment.notebook import FILE, Notebook

DESIGN = Design(
    modes=("synchronous", "asynchronous"), devices=(1, 2), seeds=2, rates=(0.5,), steps=32, every=16
)


def test_it_goes_on_where_it_was_cut_off(tmp_path):
    folder = tmp_path / "new" / "folder"
    notebook = Notebook(folder, DESIGN)
    assert len(notebook.missing) == 5  # of 8: speeds matter to two asynchronous devices only
    done = list(islice(notebook.fill(), 2))
    kept = notebook.outcomes
    with (folder / FILE).open("a") as file:
        file.write('{"trial": {"mode": "asynchr')  # stopped in the middle of a line
    again = Notebook(folder, DESIGN)
    assert again.outcomes == kept
    assert set(done).isdisjoint(again.missing)
    assert len(list(again.fill())) == 3
    finished = Notebook(folder, DESIGN)
    assert finished.missing == []
    assert finished.outcomes == again.outcomes
    assert list(finished.fill()) == []


def test_another_experiment_in_the_folder_is_left_alone(tmp_path):
    list(islice(Notebook(tmp_path, DESIGN).fill(), 1))
    before = (tmp_path / FILE).read_text()
    with pytest.raises(cn.InvalidArgument, match="holds the outcomes of another design"):
        Notebook(tmp_path, replace(DESIGN, steps=64))
    assert (tmp_path / FILE).read_text() == before
