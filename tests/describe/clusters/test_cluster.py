import json
from dataclasses import FrozenInstanceError

import pytest

from colonnade.describe.clusters.cluster import Cluster
from colonnade.describe.clusters.fence import rules
from colonnade.errors import InvalidArgument

TWO = json.dumps({"cluster": {"worker": ["a:2222", "b:2222"]}, "task": {"type": "worker", "index": 1}})
SLURM = {
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_NODELIST": "n[1-2]",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
    "SLURM_NODEID": "1",
    "SLURM_LOCALID": "0",
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "COLONNADE_PORT": "2222",
}


def test_a_program_alone_has_no_cluster():
    assert Cluster.from_environment({}) is None
    assert Cluster.from_environment({"TF_CONFIG": ""}) is None
    assert Cluster.from_environment({"TF_CONFIG": "{}", "COLONNADE_GENERATION": "x"}) is None


def test_tf_config():
    cluster = Cluster.from_environment({"TF_CONFIG": TWO})
    assert cluster == Cluster(("a:2222", "b:2222"), 1, ("a", "b"), 0, "TF_CONFIG")
    assert (cluster.size, cluster.rank, cluster.name) == (2, 1, "b")


def test_a_slurm_step():
    cluster = Cluster.from_environment(SLURM)
    assert cluster == Cluster(("n1:2222", "n2:2222"), 1, ("n1", "n2"), 0, "Slurm", "Slurm step 7.0")
    assert Cluster.from_environment(SLURM | {"SLURM_RESTART_COUNT": "3"}).generation == 3


def test_jobs_at_the_same_addresses_are_not_the_same_cluster():
    """Two steps on one host may come to the same port, and so may two launchers."""
    steps = [SLURM, SLURM | {"SLURM_JOB_ID": "8"}, SLURM | {"SLURM_STEP_ID": "1"}]
    said = {"TF_CONFIG": TWO, "COLONNADE_CLUSTER": "x"}
    every = [*steps, {"TF_CONFIG": TWO}, said, said | {"COLONNADE_CLUSTER": "y"}]
    assert len({Cluster.from_environment(one).digest for one in every}) == len(every)
    ranks = [SLURM | {"SLURM_NODEID": str(rank)} for rank in (0, 1)]
    assert len({Cluster.from_environment(one).digest for one in ranks}) == 1


def test_tf_config_goes_before_slurm():
    assert Cluster.from_environment(SLURM | {"TF_CONFIG": TWO}).source == "TF_CONFIG"


def test_what_colonnade_run_says():
    said = {"TF_CONFIG": TWO, "COLONNADE_GENERATION": "4", "COLONNADE_MACHINES": "first,second"}
    cluster = Cluster.from_environment(said)
    assert (cluster.source, cluster.generation, cluster.names) == ("colonnade run", 4, ("first", "second"))


def test_names_are_hosts_and_numbered_where_a_host_has_several():
    cluster = Cluster(("a:1", "localhost:1", "localhost:2", "[::1]:5"), 0)
    assert cluster.names == ("a", "localhost/0", "localhost/1", "::1")


def test_tf_config_goes_both_ways_and_has_only_workers():
    with_chief = json.dumps(
        {"cluster": {"chief": ["a:1"], "worker": ["b:1"]}, "task": {"type": "worker", "index": 0}}
    )
    cluster = Cluster.from_environment({"TF_CONFIG": with_chief})
    assert json.loads(cluster.tf_config) == {
        "cluster": {"worker": ["a:1", "b:1"]},
        "task": {"type": "worker", "index": 1},
    }
    assert Cluster.from_environment({"TF_CONFIG": cluster.tf_config}) == cluster


def test_it_is_frozen_and_can_be_a_key():
    cluster = Cluster(["a:1"], 0)
    with pytest.raises(FrozenInstanceError):
        cluster.rank = 1
    assert {cluster: 1}[Cluster(("a:1",), 0)] == 1


def test_all_problems_of_an_environment_at_once():
    config = json.dumps({"cluster": {"worker": ["a:1", "a:1", "b"]}, "task": {"type": "ps", "index": 0}})
    with pytest.raises(InvalidArgument) as refused:
        Cluster.from_environment({"TF_CONFIG": config, "COLONNADE_GENERATION": "-1"})
    assert [problem.argument for problem in refused.value.problems] == [
        "COLONNADE_GENERATION",
        "TF_CONFIG.cluster.worker[2]",
        "TF_CONFIG.cluster.worker[1]",
        "TF_CONFIG.task.type",
    ]
    assert str(refused.value).startswith(
        "joining other machines cannot work with:\n  COLONNADE_GENERATION='-1'"
    )


def test_names_must_fit():
    with pytest.raises(InvalidArgument, match="COLONNADE_MACHINES='x'"):
        Cluster.from_environment({"TF_CONFIG": TWO, "COLONNADE_MACHINES": "x"})
    with pytest.raises(InvalidArgument, match="a name of its own"):
        Cluster.from_environment({"TF_CONFIG": TWO, "COLONNADE_MACHINES": "x,x"})


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"addresses": ()}, "at least one machine"),
        ({"addresses": ("a:1", "a:1")}, "is the address of addresses"),
        ({"addresses": ("a",)}, "has no port"),
        ({"rank": 2}, "they are 0 to 1"),
        ({"rank": -1}, "no such machine"),
        ({"rank": True}, "no such machine"),
        ({"names": ("x",)}, "1 names for 2"),
        ({"names": ("x", "")}, "a name of its own"),
        ({"generation": -1}, "generation=-1"),
    ],
)
def test_a_cluster_made_by_hand_is_checked_as_well(arguments, says):
    with pytest.raises(InvalidArgument, match=says):
        Cluster(**{"addresses": ("a:1", "b:1"), "rank": 0} | arguments)


@pytest.mark.parametrize(
    ("addresses", "environ"),
    [
        (("127.0.0.1:1", "localhost:2", "[::1]:3"), {}),
        (("a:1",), {}),  # alone it opens no port
        (("a:1", "b:1"), {"COLONNADE_PRIVATE_NETWORK": "1"}),
    ],
)
def test_a_cluster_that_may_open_ports(addresses, environ):
    Cluster(addresses, 0).check_private(environ)


def test_a_cluster_that_strangers_could_reach_is_refused_with_a_fence_for_its_very_ports():
    cluster = Cluster(("10.0.0.1:2223", "10.0.0.2:2222", "10.0.0.3:2222"), 0)
    with pytest.raises(InvalidArgument, match="COLONNADE_PRIVATE_NETWORK=None") as refused:
        cluster.check_private({})
    for command in rules(["10.0.0.1", "10.0.0.2", "10.0.0.3"], "2222, 2223"):
        assert command in str(refused.value)


@pytest.mark.parametrize(
    ("addresses", "beside"),
    [
        (("a:1", "b:1"), 1),
        (("a:1", "b:1", "a:2"), 2),
        (("127.0.0.1:1", "localhost:2", "[::1]:3"), 3),
        (("127.0.0.1:1", "b:2"), 1),
    ],
)
def test_how_many_are_processes_of_one_machine(addresses, beside):
    """They divide its cores."""
    assert Cluster(addresses, 0).beside == beside
