import re

import optuna
import pytest

import colonnade as cn
from colonnade.show.report.report import report, watch
from colonnade.show.report.study import failures, figures, importance, is_study, study_page, write_page
from colonnade.sweeps.storage import open_storage
from colonnade.sweeps.trial_folder import TrialFolder

TITLES = ["History", "Parallel coordinates", "Slices", "Importance of the parameters", "Values on the way"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A study in which most went well, and one trial failed."""
    path = tmp_path_factory.mktemp("study")
    study = optuna.create_study(study_name="<rates>", storage=open_storage(None, path))
    (path / "study.json").write_text('{"study": "<rates>", "storage": null}')
    for number in range(6):
        trial = study.ask()
        x, kind = trial.suggest_float("x", 0, 1), trial.suggest_categorical("kind", ["a", "b"])
        trial.report(x, 1)
        if number == 4:
            trial.set_user_attr("reason", "exit code 1 & more")
            made = TrialFolder(path / "trials" / "0004")
            made.make()
            made.log.write_text("<script>alert(1)</script>\nit broke\n")
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
        else:
            study.tell(trial, x + (kind == "a"))
    return path


def test_a_page_has_every_figure_and_needs_nothing_else(folder):
    page = write_page(folder).read_text()
    assert re.findall(r"<h2>(.*?)</h2>", page) == ["Best", *TITLES, "Failed", "Trials"]
    without_library = re.sub(r"<script>/\*\*.*?</script>", "", page, flags=re.S)
    assert not re.search(r'(src|href)="', without_library)
    assert page.count("Plotly.newPlot(") == page.count('"showSendToCloud": false') == 5


def test_a_watched_page_looks_at_itself_again(folder, tmp_path):
    page = next(watch([folder], tmp_path / "page.html"))
    assert '<meta http-equiv="refresh" content="5">' in page.read_text()
    assert "http-equiv" not in report([folder], page).read_text()


def test_what_trials_print_is_shown_as_text(folder):
    page = study_page(folder)
    assert "<script>alert(1)" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert "it broke" in page
    assert "exit code 1 &amp; more" in page
    assert "<title>Study &lt;rates&gt;</title>" in page


def test_a_study_without_results_has_no_figures(tmp_path):
    study = optuna.create_study()
    assert figures(study) == []
    assert importance(study) == {}
    assert failures(study, tmp_path) == []


def test_importance_needs_something_that_varied():
    study = optuna.create_study()
    for _ in range(5):
        trial = study.ask()
        study.tell(trial, trial.suggest_int("n", 1, 1))
    assert importance(study) == {}


def test_which_folder_is_a_studys(folder, tmp_path):
    assert is_study(folder)
    assert not is_study(tmp_path)


def test_colonnade_report_makes_it_too(folder, tmp_path):
    page = report([folder], tmp_path / "page.html")
    assert "<title>Study &lt;rates&gt;</title>" in page.read_text()
    assert report([folder], page) == page  # it is known as one of ours
    with pytest.raises(cn.InvalidArgument, match="Name it alone"):
        report([folder, folder], tmp_path / "both.html")
