"""What a process knows of its cluster; machines that really join are in `machines/test_peers.py`."""

import json
import random

import pytest
import tensorflow as tf

import colonnade as cn
from colonnade.describe.clusters.cluster import Cluster
from colonnade.errors import RESUMABLE, AlreadyStarted
from colonnade.hardware.clusters import joining

TWO = json.dumps(
    {"cluster": {"worker": ["127.0.0.1:1", "127.0.0.1:2"]}, "task": {"type": "worker", "index": 1}}
)


def test_a_program_alone_is_the_first_of_one():
    machines = cn.machines()
    assert (machines.rank, machines.size, machines.is_first) == (0, 1, True)
    assert machines.name == machines.names[0]
    assert joining.joined() is None


def test_a_cluster_of_one_needs_no_joining():
    one = json.dumps({"cluster": {"worker": ["127.0.0.1:1"]}, "task": {"type": "worker", "index": 0}})
    assert joining.unjoined({"TF_CONFIG": one}) is None
    assert joining.unjoined({}) is None


def test_who_is_left_alone_of_a_cluster_knows_how_often_it_was_started():
    one = json.dumps({"cluster": {"worker": ["127.0.0.1:1"]}, "task": {"type": "worker", "index": 0}})
    assert joining.left_alone({"TF_CONFIG": one, "COLONNADE_GENERATION": "2"}) == 2
    assert joining.left_alone({"TF_CONFIG": TWO, "COLONNADE_GENERATION": "2"}) is None
    assert joining.left_alone({}) is None


def test_a_cluster_is_known_until_it_is_joined():
    cluster = joining.unjoined({"TF_CONFIG": TWO})
    assert (cluster.rank, cluster.size) == (1, 2)


def test_children_of_a_machine_are_not_machines():
    mark = joining._mark(Cluster.from_environment({"TF_CONFIG": TWO}))
    assert joining.unjoined({"TF_CONFIG": TWO, joining.JOINED: mark}) is None


def test_children_that_are_started_as_another_cluster_are_machines_of_it():
    """Else each of them would train alone."""
    mark = joining._mark(Cluster.from_environment({"TF_CONFIG": TWO}))
    for other in ({"TF_CONFIG": TWO.replace(":2", ":3")}, {"TF_CONFIG": TWO, "COLONNADE_CLUSTER": "x"}):
        assert joining.unjoined({**other, joining.JOINED: mark}).size == 2


def test_a_missed_meeting_asks_to_be_started_again(monkeypatch, capsys):
    monkeypatch.setenv("COLONNADE_JOIN_SECONDS", "0.2")
    with pytest.raises(SystemExit) as left:
        joining.join(Cluster.from_environment({"TF_CONFIG": TWO}))
    assert left.value.code == RESUMABLE
    assert "127.0.0.1 (127.0.0.1:1) did not answer" in capsys.readouterr().err.replace("/0", "")


def test_to_join_after_tensorflow_has_started_is_refused(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", TWO)
    with pytest.raises(AlreadyStarted, match="machine 1 of 2"):
        cn.setup()


def test_to_train_without_having_joined_is_refused(monkeypatch):
    """It would train alone, as many times as there are machines."""
    import keras

    monkeypatch.setenv("TF_CONFIG", TWO)
    with pytest.raises(cn.InvalidArgument, match=r"has not joined them.*cn.setup\(\)"):
        cn.Trainer(lambda x: x, keras.optimizers.SGD())


def test_a_public_address_is_refused_before_anything_is_opened():
    with pytest.raises(cn.InvalidArgument, match="COLONNADE_PRIVATE_NETWORK"):
        joining.join(Cluster(("192.0.2.1:2222", "192.0.2.2:2222"), 0))


@pytest.mark.parametrize("text", ["soon", "0", "-1", "nan", "inf"])
def test_a_patience_that_is_no_number_of_seconds_is_refused(monkeypatch, text):
    monkeypatch.setenv("COLONNADE_JOIN_SECONDS", text)
    with pytest.raises(cn.InvalidArgument, match="COLONNADE_JOIN_SECONDS"):
        joining._patience()


def test_python_is_seeded_only_where_machines_would_draw_different_numbers():
    state = random.getstate()
    default = tf.compat.v1.get_seed(0)[0]
    joining._seed(["same", "same"], 7, default)
    assert random.getstate() == state
    joining._seed(["one", "another"], 7, default)
    one = random.random()
    joining._seed(["one", "another"], 7, default)
    assert random.random() == one
    random.setstate(state)


def test_a_shuffle_with_a_seed_is_that_of_one_machine_and_one_without_is_the_same_on_all():
    def order(**seed):
        return [int(i) for i in tf.data.Dataset.range(50).shuffle(50, **seed)]

    tf.random.set_seed(None)  # as a program that has set none
    alone, default = order(seed=1), tf.compat.v1.get_seed(0)[0]
    on_machines = []
    for _ in range(2):
        joining._seed(["one", "another"], 7, default)
        on_machines.append((order(seed=1), order()))
    assert on_machines[0] == on_machines[1]
    assert on_machines[0][0] == alone
    tf.random.set_seed(5)  # a seed of the program's own stays
    wanted = order(seed=1)
    joining._seed(["one", "another"], 7, tf.compat.v1.get_seed(0)[0])
    assert order(seed=1) == wanted
    tf.random.set_seed(None)
