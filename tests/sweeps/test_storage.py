import time

import pytest

import colonnade as cn
from colonnade.sweeps.storage import Persistent, open_storage, without_password


def test_urls(tmp_path):
    for url in (None, f"sqlite:///{tmp_path}/a.db", str(tmp_path / "b.log")):
        assert open_storage(url, tmp_path).get_all_studies() == []


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("postgresql://me:secret@127.0.0.1:9/x", "does not answer"),
        ("ftp://host", "no storage that Optuna knows"),
        ("nonsense", "must be a URL"),
        ("sqlite:////no/such/folder/a.db", "does not answer"),
    ],
)
def test_what_cannot_be_opened(tmp_path, url, says):
    with pytest.raises(cn.InvalidArgument, match=says) as caught:
        open_storage(url, tmp_path)
    assert "secret" not in str(caught.value)


def test_passwords_are_not_shown():
    assert without_password("postgresql://me:secret@host/x") == "postgresql://me@host/x"
    assert without_password("sqlite:///a.db") == "sqlite:///a.db"


def test_a_storage_that_is_away_is_asked_again():
    said, until = [], time.monotonic() + 1.5

    def answer(value):
        if time.monotonic() < until:
            raise OSError("away")
        return value

    assert Persistent(said.append).call(answer, 7) == 7
    assert len(said) == 2
    assert "does not answer (away)" in said[0]
    assert "answers again" in said[1]


def test_patience_ends():
    def never():
        raise OSError("gone")

    with pytest.raises(cn.ColonnadeError, match="gone"):
        Persistent(print, patience=0.2).call(never)
    hurried = Persistent(print)
    hurried.giving_up.set()
    with pytest.raises(cn.ColonnadeError):
        hurried.call(never)


def test_other_errors_are_not_tried_again():
    calls = []

    def wrong():
        calls.append(1)
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        Persistent(print).call(wrong)
    assert calls == [1]
