"""A file is there as it was or as it is to be, and nothing beside it."""

import pytest

from colonnade.describe.whole_file import write_whole


def test_a_file_is_replaced(tmp_path):
    for text in ("a\n", "b é\n"):
        write_whole(tmp_path / "file", text)
        assert (tmp_path / "file").read_text(encoding="utf-8") == text
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_half_a_pair_of_surrogates_is_a_question_mark(tmp_path):
    write_whole(tmp_path / "file", "caf\udce9 \ud800")
    assert (tmp_path / "file").read_text() == "caf? ?"


def test_a_file_may_be_closed_to_others(tmp_path):
    write_whole(tmp_path / "file", "secret", 0o600)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("where", ["os.fsync", "pathlib.Path.replace"])
def test_what_fails_leaves_the_old_file_and_no_other(tmp_path, monkeypatch, where, error):
    write_whole(tmp_path / "file", "old")

    def fails(*arguments):
        raise error

    monkeypatch.setattr(where, fails)
    with pytest.raises(type(error)):
        write_whole(tmp_path / "file", "new")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("file", "old")]


def test_a_folder_that_may_not_be_written_says_so(tmp_path):
    with pytest.raises(FileNotFoundError):
        write_whole(tmp_path / "nowhere" / "file", "text")
