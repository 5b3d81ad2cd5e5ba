"""Who owns a trial: several books on one study stand for several sweeps, with one folder or with one each."""

import contextlib

import optuna
import pytest

from colonnade.sweeps import trial_book
from colonnade.sweeps.owner import SweepOwner
from colonnade.sweeps.search import Search, categories, combinations
from colonnade.sweeps.slots.ending import CUT, Ending
from colonnade.sweeps.storage import open_storage
from colonnade.sweeps.trial_book import TrialBook

KILLED = Ending("failed", reason="killed", again=True)


@pytest.fixture
def books(tmp_path):
    """Books of sweeps by name; `folder` says on which machine, `url` where the study is."""
    owners = []

    def book(folder="here", url=None, search=None, **options):
        place = tmp_path / folder
        storage = open_storage(url or str(_journal(tmp_path)), place)
        study = optuna.create_study(study_name="s", storage=storage, load_if_exists=True)
        owner = SweepOwner(place)
        owners.append(owner)
        made = TrialBook(study, storage, place, owner, search or Search(3, "random"), **options)
        made.owner = owner
        return made

    yield book
    for owner in owners:
        with contextlib.suppress(OSError):  # one that has died in a test
            owner.__exit__()


def _journal(folder):
    return folder / "journal.log"


def states(book):
    return [trial.state.name for trial in book.study.get_trials(deepcopy=False)]


def take(book):
    return book.take("virtual:0", "host")


def test_trials_are_taken_until_there_are_enough(books):
    book = books()
    taken = [take(book) for _ in range(4)]
    assert [one and one.number for one in taken] == [0, 1, 2, None]
    assert states(book) == ["RUNNING"] * 3
    assert book.left() == 0
    book.end(taken[0], Ending("complete", 1.5))
    book.end(taken[1], Ending("pruned"))
    book.end(taken[2], Ending("failed", reason="it broke"))
    assert states(book) == ["COMPLETE", "PRUNED", "FAIL"]
    assert book.study.trials[2].user_attrs["reason"] == "it broke"
    assert book.state().best.number == 0


def test_an_owner_is_named_in_a_trial_from_its_first_moment(books, monkeypatch):
    book = books()

    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(book.study, "ask", killed)
    with pytest.raises(KeyboardInterrupt):
        take(book)
    (trial,) = book.study.trials
    assert (trial.state.name, trial.user_attrs["colonnade"]["owner"]) == ("WAITING", book.owner.name)


def test_what_was_cut_is_taken_again_as_the_same_trial(books):
    book = books()
    first = take(book)
    x = book.call(first, "suggest_float", "x", 0, 1)
    book.end(first, Ending(CUT))
    assert states(book) == ["WAITING"]
    again = take(book)
    assert (again.number, again.failures) == (0, 0)
    assert book.call(again, "suggest_float", "x", 0, 1) == x
    assert again.folder == first.folder


def test_a_killed_trial_is_tried_again_as_often_as_told(books):
    book = books(retries=2)
    for failures in (0, 1):
        taken = take(book)
        assert (taken.number, taken.failures) == (0, failures)
        assert book.end(taken, KILLED).kind == CUT
    assert book.end(take(book), KILLED).kind == "failed"
    assert states(book) == ["FAIL"]
    assert book.end(take(book), Ending("failed", reason="an error")).kind == "failed"  # no use to try again


def test_the_trials_of_a_dead_sweep_are_got_back(books):
    dead, other = books(), books()
    number = take(dead).number
    take(other)
    assert other.tidy() == []
    dead.owner.__exit__()
    assert other.may_come_back()
    (said,) = other.tidy()
    assert f"trial {number} of a sweep that died" in said
    assert states(other) == ["WAITING", "RUNNING"]
    assert not other.may_come_back()
    assert take(other).number == number


def test_a_trial_that_was_taken_and_never_begun_is_got_back(books):
    """The answer to a take was lost: the trial is ours in the storage, and we do not know it."""
    book = books()
    take(book)
    assert not book.may_come_back()
    book._running.clear()
    assert book.may_come_back(), "else a sweep that has no other trial left would end here"
    assert book.tidy() == []
    assert "never begun" in book.tidy()[0]
    assert states(book) == ["WAITING"]
    assert not book.may_come_back()


def test_ends_can_be_told_twice(books):
    book = books()
    one, two = take(book), take(book)
    for _ in range(2):
        assert book.end(one, Ending("complete", 2.0)).value == 2.0
    book.end(two, Ending(CUT))
    three = take(book)  # the same trial, and its first end comes once more, late
    book._running.pop(three.number)
    other = books()
    book._storage.set_trial_user_attr(
        book._id(three.number), "colonnade", {"owner": other.owner.name, "failures": 0}
    )
    book.end(two, Ending(CUT))
    assert states(book) == ["COMPLETE", "RUNNING"]


def test_trials_of_others_are_left_alone(books):
    """Somebody may use the study with Optuna alone."""
    book = books()
    book.study.ask()
    assert book.tidy() == book.tidy() == []
    assert states(book) == ["RUNNING"]


@pytest.mark.parametrize("storage", ["journal", "sqlite"])
def test_a_silent_machine_costs_its_trials(books, tmp_path, monkeypatch, storage):
    url = f"sqlite:///{tmp_path}/a.db" if storage == "sqlite" else None
    far = books("there", url, shared=True, retries=1)
    near = books("here", url, shared=True, retries=1)
    far.tidy()
    lost = take(far)
    x = far.call(lost, "suggest_float", "x", 0, 1)
    assert near.tidy() == []
    monkeypatch.setattr(trial_book, "SILENT", -1.0)
    far.tidy()  # it lives: its heart has beaten since
    assert near.tidy() == []
    (said,) = near.tidy()
    assert "failed with its machine, host; added another like it" in said
    assert states(near) == ["FAIL", "WAITING"]
    # It comes back, and its result is not taken.
    ending = far.end(lost, Ending("complete", 1.0))
    assert (ending.kind, "another machine" in ending.reason) == ("failed", True)
    again = take(near)
    assert near.call(again, "suggest_float", "x", 0, 1) == x
    assert again.failures == 1
    assert states(near) == ["FAIL", "RUNNING"]


def grid():
    values = {"a": [1, 2], "b": ["x", "y"]}
    return Search(4, "random", None, {}, combinations(values, "grid", None), categories(values))


def test_a_grid_is_written_once(books):
    first, second = books(search=grid()), books(search=grid())
    first.prepare()
    second.prepare()
    taken = [take(book) for book in (first, second, first, second, first)]
    assert taken[-1] is None
    assert [one.trial.params for one in taken[:4]] == grid().grid
    assert first.left() == 0


def test_a_grid_that_was_cut_off_is_completed(books, monkeypatch):
    first = books(search=grid())
    real, calls = first.study.add_trial, []

    def killed(trial):
        calls.append(trial)
        if len(calls) == 3:
            raise KeyboardInterrupt
        real(trial)

    monkeypatch.setattr(first.study, "add_trial", killed)
    with pytest.raises(KeyboardInterrupt):
        first.prepare()
    second = books(search=grid())
    second.prepare()
    assert [trial.params for trial in second.study.trials] == grid().grid


def test_two_machines_that_wrote_the_same_grid_run_it_once(books, monkeypatch):
    near, far = (books(place, search=grid(), shared=True) for place in ("here", "there"))
    near.prepare()
    for combination in grid().grid:  # as if it had not seen the other's
        far._create(combination, grid().kinds, {"owner": far.owner.name})
    taken = [take(book) for book in (near, far, near, far)]
    assert [one.number for one in taken] == [0, 1, 2, 3]
    assert take(far) is None
    assert states(near) == ["RUNNING"] * 4 + ["FAIL"] * 4
