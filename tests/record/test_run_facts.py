"""What run.json says of a training, in every mode."""

import json

import keras
import pytest
import tensorflow as tf

import colonnade as cn
from colonnade.run.record.run_facts import peaks

model = keras.Sequential([keras.Input([3]), keras.layers.Dense(1)], name="tower")


def loss(x):
    return tf.squeeze(model(x, training=True), 1) ** 2


@pytest.mark.parametrize(
    ("sync", "said"),
    [
        (cn.Synchronous(), "Synchronous()"),
        (cn.Asynchronous(damping=True), "Asynchronous(damping=True)"),
        (cn.LocalSGD(2), "LocalSGD(every=2)"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_ran_where(tmp_path, sync, said):
    trainer = cn.Trainer(loss, keras.optimizers.SGD(0.5), devices=2, sync=sync)
    trainer.fit((tf.ones([4, 3]),), batch_size=4, steps=2, logdir=tmp_path, progress=False)
    facts = json.loads((tmp_path / "run.json").read_text())
    assert facts["models"] == ["tower (Sequential)"]
    assert facts["parameters"] == {"variables": 2, "numbers": 4, "bytes": 16}
    assert facts["optimizer"]["settings"]["learning_rate"] == 0.5
    assert facts["mode"]["sync"] == said
    assert facts["mode"]["batch"] == 4
    assert len(cn.Topology.from_json(json.dumps(facts["topology"]))) == 2
    assert sum(link["bytes"] for link in facts["links"]) == trainer.traffic() > 0
    assert facts["memory"] == {"estimate": None, "limits": {}}
    assert facts["versions"]["colonnade"] == cn.__version__


@pytest.mark.long
def test_a_pipeline_and_an_estimate(tmp_path):
    pipeline = cn.Pipeline([keras.layers.Dense(4), keras.layers.Dense(1)], [[0, 1], [2, 3]], micro_batches=2)
    trainer = cn.Trainer(lambda x: tf.squeeze(pipeline(x), 1), keras.optimizers.SGD(0.1), devices=pipeline)
    estimate = trainer.memory(tf.ones([8, 3]))
    trainer.fit((tf.ones([8, 3]),), batch_size=8, steps=1, logdir=tmp_path, progress=False)
    facts = json.loads((tmp_path / "run.json").read_text())
    assert facts["models"] == ["a pipeline of 2 stages, 2 micro-batches"]
    assert facts["devices"] == ["CPU:0", "CPU:1", "CPU:2", "CPU:3"]
    assert {(link["from"], link["to"]) for link in facts["links"]} == {
        ("CPU:0", "CPU:2"),
        ("CPU:2", "CPU:0"),
        ("CPU:1", "CPU:3"),
        ("CPU:3", "CPU:1"),
    }
    told = facts["memory"]["estimate"]
    assert [told[f"CPU:{i}"]["total"] for i in range(4)] == [one.total for one in estimate.devices]


def test_memory_in_use():
    assert peaks(["/device:CPU:0"])["devices"] == {}
    assert peaks(["/device:CPU:0"])["process"] > 2**20


def test_what_cannot_be_told_is_left_out(tmp_path):
    """A loss that names something without a value yet, and an optimizer that does not tell its settings."""

    class Secretive(keras.optimizers.SGD):
        def get_config(self):
            raise NotImplementedError

    def make(known=False):
        if known:
            later = tf.identity

        def loss(x):
            if x.shape[0] == 0:
                return later(x)
            return tf.squeeze(model(x), 1) ** 2

        return loss

    trainer = cn.Trainer(make(), Secretive(0.1), devices=2)
    trainer.fit((tf.ones([4, 3]),), batch_size=4, steps=1, logdir=tmp_path, progress=False)
    facts = json.loads((tmp_path / "run.json").read_text())
    assert facts["models"] == []
    assert facts["optimizer"] == {"name": "Secretive", "settings": {}}
