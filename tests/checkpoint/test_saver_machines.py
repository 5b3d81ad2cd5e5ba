"""A saver on one of several machines, the others of which are made up; real ones are in `machines/`."""

from types import SimpleNamespace

import pytest

import colonnade as cn
from colonnade.errors import RESUMABLE
from colonnade.run.checkpoint import lock
from colonnade.run.checkpoint.lock import LOCK, owned
from colonnade.run.checkpoint.saver import Saver
from colonnade.run.engine.history import Record
from colonnade.run.machines.peers import Peers


class Others:
    """A meeting in which the other machine says what a test wants, by topic."""

    def __init__(self, rank, **said):
        self.rank, self.said, self.agreed = rank, said, {}

    def exchange(self, topic, value):
        other = self.said.get(topic.replace(" ", "_"), value)
        return [value, other] if self.rank == 0 else [other, value]

    def agree(self, where, facts, fix):
        self.agreed |= facts


def saver_of(folder, others, engine=None, generation=0, *, data="exact", sharded=False):
    machines = (("a:0",), ("b:0",)), ("a", "b"), others
    peers = Peers(others.rank, *machines, generation=generation, sharded=sharded)
    return Saver(cn.Checkpoint(folder, every=2, data=data), engine, {}, [], 1, peers=peers)


def test_a_directory_that_is_not_that_of_the_first_machine_is_noticed_at_the_first_start(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(lock, "PATIENCE", 0.1)
    shared, own = tmp_path / "shared", tmp_path / "own"
    shared.mkdir()
    with owned(shared, 0) as first:
        for folder, found in ((shared, "shared"), (own, "not the same")):
            others = Others(1, the_saved_step_to_go_on_from=[None, first.token])
            with saver_of(folder, others):
                assert others.agreed == {"directory": found}
    assert not (own / LOCK).exists()  # who does not write does not look like an owner


def test_a_later_start_that_finds_the_directory_in_use_asks_for_another_one(tmp_path, monkeypatch, capsys):
    """What has it may be what is left of the start before; a second launcher is another matter."""
    monkeypatch.setattr(lock, "RESTARTED", 0.2)
    with owned(tmp_path):
        with pytest.raises(SystemExit) as left, saver_of(tmp_path, Others(0), generation=1):
            pass
        assert left.value.code == RESUMABLE
        assert "saves into" in capsys.readouterr().err
        with pytest.raises(cn.CheckpointInUse), saver_of(tmp_path, Others(0), generation=0):
            pass


class Nothing:
    """An engine without a variable."""

    num_replicas = 1

    def state(self):
        return SimpleNamespace(snapshot=dict, common={}, own={}, random=frozenset())

    def prepare(self, batch):
        raise AssertionError("not all machines have a batch")


@pytest.mark.parametrize("elsewhere", [True, False])
def test_a_fit_that_a_callback_of_another_machine_ended_is_saved_as_ended(tmp_path, elsewhere):
    with saver_of(tmp_path, Others(0, whether_the_fit_was_ended=elsewhere), Nothing()) as saver:
        saver._batches = SimpleNamespace(position=lambda taken: {}, begun=1, spec="x", cardinality=1)
        written = []
        saver._writer = SimpleNamespace(wait=lambda: None, begin=written.append)
        saver._save(Record(0.5, {}, 2, 8), stopped=False)
    assert [one.described().stopped for one in written] == [elsewhere]


def test_nothing_is_prepared_where_a_machine_has_no_data(tmp_path):
    """The others would wait for it where it never comes; the fit says whose data are at their end."""
    with saver_of(tmp_path, Others(0, the_first_batch=False), Nothing()) as saver:
        saver._batches = SimpleNamespace(like=lambda: "a batch")
        assert saver.start(0) is None


def batches(**more):
    return SimpleNamespace(position=lambda taken: {}, begun=1, spec="x", cardinality=1, **more)


def test_data_of_their_own_are_not_skipped_by_another_number_of_machines(tmp_path):
    """After a restart on fewer of them: each would pass over so many batches of other data."""
    with saver_of(tmp_path, Others(0), Nothing(), data="skip", sharded=True) as saver:
        saver._batches, written = batches(), []
        saver._writer = SimpleNamespace(wait=lambda: None, begin=written.append)
        saver._save(Record(0.5, {}, 2, 8), stopped=False)
    manifest = written[0].described()
    assert manifest.data["parts"] == 2
    with Saver(cn.Checkpoint(tmp_path, data="skip"), Nothing(), {}, [], 1) as alone:
        alone._saved, alone._batches = manifest, batches()
        alone._seeks = False
        with pytest.raises(cn.InvalidArgument, match="2 machines had data of their own, and now there was"):
            alone.start(0)
    again = saver_of(tmp_path, Others(0), Nothing(), data="skip", sharded=True)
    again._batches = batches()
    assert list(again._data_problems(manifest, "x")) == []
    del manifest.data["parts"]  # as of an earlier version
    assert list(again._data_problems(manifest, "x")) == []
