import json
import multiprocessing

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from colonnade.sweeps import journal
from colonnade.sweeps.journal import KernelLockedJournal


def study(path):
    return optuna.create_study(
        storage=JournalStorage(KernelLockedJournal(str(path))), study_name="a", load_if_exists=True
    )


def test_optunas_own_journal_reads_it(tmp_path):
    ours = study(tmp_path / "journal.log")
    trial = ours.ask()
    ours.tell(trial, trial.suggest_float("x", 0, 1))
    theirs = JournalStorage(JournalFileBackend(str(tmp_path / "journal.log")))
    loaded = optuna.load_study(study_name="a", storage=theirs)
    assert [t.values for t in loaded.trials] == [t.values for t in ours.trials]


@pytest.mark.parametrize("torn", [b'{"op_code":', b"x" * 10_000, b'{"a": 1}'])
def test_a_torn_line_is_cut_off(tmp_path, torn):
    path = tmp_path / "journal.log"
    study(path).ask()
    whole = path.read_bytes()
    path.write_bytes(whole + torn)
    again = study(path)
    again.ask()
    assert path.read_bytes().startswith(whole)
    assert [json.loads(line)["op_code"] for line in path.read_bytes()[len(whole) :].splitlines()] == [0, 4]
    assert len(study(path).trials) == 2


def test_a_full_disk_leaves_no_part_of_a_line(tmp_path, monkeypatch):
    path = tmp_path / "journal.log"
    kept = study(path)
    whole = path.read_bytes()
    real = journal.os.write

    def full(file, text):
        real(file, text[:20])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(journal.os, "write", full)
    with pytest.raises(OSError, match="No space left"):
        kept.ask()
    assert path.read_bytes() == whole
    monkeypatch.setattr(journal.os, "write", real)
    kept.ask()
    assert len(study(path).trials) == 1


def test_a_journal_that_was_taken_away_does_not_begin_anew(tmp_path):
    path = tmp_path / "journal.log"
    kept = study(path)
    path.rename(tmp_path / "away")
    with pytest.raises(FileNotFoundError):
        kept.ask()
    assert not path.exists()
    (tmp_path / "away").rename(path)
    kept.ask()


def _add(path, count):
    for i in range(count):
        KernelLockedJournal(path).append_logs([{"number": i, "text": "x" * 5000}])


def test_many_processes_write_whole_lines(tmp_path):
    path = tmp_path / "journal.log"
    path.touch()
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_add, args=(str(path), 50)) for _ in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert sorted(json.loads(line)["number"] for line in path.read_text().splitlines()) == sorted(
        list(range(50)) * 4
    )
