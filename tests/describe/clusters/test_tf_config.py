import json

import pytest

from colonnade.describe.clusters.tf_config import read, written
from colonnade.errors import InvalidArgument


def text(cluster, **task):
    return json.dumps({"cluster": cluster, "task": task})


def rules(config):
    problems = []
    read(config, problems)
    return [str(problem) for problem in problems]


WORKER_0 = {"type": "worker", "index": 0}


def test_what_is_written_is_read():
    problems = []
    assert read(written(["a:1", "b:2"], 1), problems) == (("a:1", "b:2"), 1)
    assert problems == []


def test_the_chief_is_the_first():
    cluster = {"worker": ["b:1", "c:1"], "chief": ["a:1"]}
    assert read(text(cluster, type="worker", index=1), []) == (("a:1", "b:1", "c:1"), 2)
    assert read(text(cluster, type="chief", index=0), []) == (("a:1", "b:1", "c:1"), 0)


def test_addresses_by_index_and_an_index_in_digits():
    cluster = {"worker": {"1": "b:1", "0": "a:1"}}
    assert read(text(cluster, type="worker", index="1"), []) == (("a:1", "b:1"), 1)


@pytest.mark.parametrize(
    "config", ["{}", '{"cluster": {}}', '{"cluster": {}, "task": {}}', '{"environment": "cloud"}']
)
def test_no_cluster_at_all_is_none(config):
    problems = []
    assert read(config, problems) is None
    assert problems == []


@pytest.mark.parametrize(
    "config", ["{", "worker", "'a'", '{"cluster": ' + "[" * 100_000, "[]", "3", '"a"', "null"]
)
def test_what_is_no_object_of_json_is_refused(config):
    with pytest.raises(
        InvalidArgument, match=r"(?s)joining other machines.*TF_CONFIG=.*JSON.*Write it as in"
    ):
        read(config, [])


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (text({"worker": ["a:1", "b:1"]}, type="worker", index=2), "there is no worker 2"),
        (text({"worker": ["a:1", "b:1"]}, type="chief", index=0), "there is no chief 0"),
        (text({"worker": ["a:1"]}, type="worker", index=-1), "TF_CONFIG.task.index=-1: must be a whole"),
        (text({"worker": ["a:1"]}, type="worker", index=True), "must be a whole"),
        (text({"worker": ["a:1"]}, type="worker", index=0.0), "must be a whole"),
        (text({"worker": ["a:1"]}, type="worker"), "which task this is"),
        (text({"worker": ["a:1"]}, type=["worker"], index=0), "must be a name"),
        (text({"worker": ["a:1"]}), "which task this is"),
        (json.dumps({"cluster": {"worker": ["a:1"]}}), "which task this is"),
        (json.dumps({"task": WORKER_0}), "TF_CONFIG.cluster=None"),
        (text(["a:1"], **WORKER_0), "must be an object with the addresses"),
        (text({"worker": "a:1"}, **WORKER_0), "must be a list of addresses"),
        (text({"worker": ["a:1", "b:1", "a:1"]}, **WORKER_0), "worker[2]='a:1': is the address of"),
        (text({"chief": ["a:1"], "worker": ["a:1"]}, **WORKER_0), "address of TF_CONFIG.cluster.chief[0]"),
        (text({"worker": ["a:1", "b"]}, **WORKER_0), "TF_CONFIG.cluster.worker[1]='b': has no port"),
        (text({"worker": ["a:1", 7]}, **WORKER_0), "must be an address"),
        (text({"chief": ["a:1", "b:1"]}, type="chief", index=0), "one chief only"),
        (text({"worker": {"0": "a:1", "00": "b:1"}}, **WORKER_0), "the task with index 0 is there twice"),
        (text({"worker": {"0": "a:1", "2": "b:1"}}, **WORKER_0), "without gaps"),
        (text({"worker": {"first": "a:1"}}, **WORKER_0), "must be a whole number"),
        ('{"cluster": {"worker": {"0": "a:1", "0": "b:1"}}, "task": {}}', "has '0' twice"),
        ('{"cluster": {"worker": ["a:1"], "worker": ["b:1"]}, "task": {}}', "has 'worker' twice"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(config, says):
    assert any(says in rule for rule in rules(config)), rules(config)


@pytest.mark.parametrize("job", ["ps", "evaluator", "master", "worcker"])
def test_other_tasks_are_refused_by_name(job):
    in_cluster = rules(text({"worker": ["a:1"], job: ["b:1"]}, **WORKER_0))
    assert any(f"TF_CONFIG.cluster.{job}=" in rule for rule in in_cluster)
    as_task = rules(text({"worker": ["a:1"]}, type=job, index=0))
    assert any(f"TF_CONFIG.task.type='{job}'" in rule for rule in as_task)


def test_all_problems_at_once():
    found = rules(text({"worker": ["a:1", "a:1", "b"], "ps": ["c:1"]}, type="evaluator", index=0))
    assert len(found) == 4
