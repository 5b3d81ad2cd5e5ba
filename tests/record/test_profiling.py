"""Profiles of every mode of training."""

import json
import time
import warnings
from collections import Counter

import keras
import numpy as np
import pytest
import tensorflow as tf
from families import kept, long

import colonnade as cn
from colonnade.describe.waits import HOST
from colonnade.hardware.profile import Recording
from colonnade.run.record.profiling import Profiling, profile_problems

# Wide enough: of ops that take less than some microseconds TensorFlow tells nothing.
X = np.random.default_rng(0).normal(size=[64, 256]).astype("float32")


def trainer(**options):
    model = keras.Sequential(
        [keras.Input([256]), keras.layers.Dense(512, activation="relu"), keras.layers.Dense(1)]
    )
    used = model
    if options.pop("pipeline", False):
        used = options["devices"] = cn.Pipeline(model, [[0, 1], [2, 3]], micro_batches=2)

    def loss(x):
        return tf.squeeze(used(x, training=True), 1) ** 2

    return cn.Trainer(loss, keras.optimizers.SGD(0.01), **{"devices": 2, **options})


MODES = {
    "shared": {},
    "mirrored": {"variables": "mirrored"},
    "partitioned": {"variables": "partitioned"},
    "local": {"sync": cn.LocalSGD(2)},
    "asynchronous": {"sync": cn.Asynchronous()},
    "pipeline": {"pipeline": True},
}


@pytest.mark.parametrize("mode", kept(MODES, "shared", "local", "asynchronous", "pipeline"))
def test_every_mode_tells_what_devices_do(mode):
    trained = trainer(**MODES[mode])
    timeline = trained.profile((X,), steps=4, batch_size=32)
    assert trained.step == 7
    assert timeline.steps == (4, 5, 6, 7)
    devices = 4 if mode == "pipeline" else 2
    assert set(timeline.devices) - {HOST} == {f"CPU:{i}" for i in range(devices)}
    counts = Counter((event.device, event.kind) for event in timeline.events)
    tasks = 4 * (2 if mode == "pipeline" else 1)
    whole = sum(4 * p.shape.num_elements() for p in trained.parameters)
    if mode == "asynchronous":  # any device may take any slice
        for kind in ("forward", "backward", "update"):
            assert sum(counts[f"CPU:{i}", kind] for i in range(2)) == 8
        sent = [event for event in timeline.events if event.kind == "reduction"]
        assert len(sent) == counts["CPU:1", "update"]
        assert {(event.bytes, event.link) for event in sent} <= {(whole, "CPU:1 -> CPU:0")}
        assert {event.bytes for event in timeline.events if event.kind == "input"} == {32 * 256 * 4}
    else:
        for i in range(devices):
            assert counts[f"CPU:{i}", "forward"] == counts[f"CPU:{i}", "backward"] == tasks
        assert sum(counts[f"CPU:{i}", "update"] for i in range(devices)) >= 4
    assert not [e for e in timeline.events if (e.kind == "waiting") != (e.cause is not None)]
    moved = Counter()
    for event in timeline.events:
        if event.kind == "reduction" or (mode == "shared" and event.kind == "update"):
            moved[event.step] += event.bytes
    if mode == "local":  # a join every second step
        assert sorted(moved.values()) == [whole, whole]
    elif mode != "asynchronous":
        assert dict(moved) == dict.fromkeys(range(4, 8), whole)
    found = timeline.breakdown()
    for row in found.seconds.values():
        assert sum(row.values()) == pytest.approx(found.span)


def test_steps_of_a_fit_with_saves_and_a_log(tmp_path):
    trained = trainer()
    history = trained.fit(
        (X,),
        batch_size=16,
        steps=12,
        log_every=5,
        profile=range(4, 8),
        logdir=tmp_path / "log",
        checkpoint=cn.Checkpoint(tmp_path / "saved", every=6),
        progress=False,
    )
    timeline = history.timeline
    assert timeline.steps == (4, 5, 6, 7)
    assert cn.Timeline.from_json((tmp_path / "log" / "timeline.json").read_text()) == timeline
    (save,) = [event for event in timeline.events if event.kind == "checkpoint"]
    assert (save.device, save.step) == (HOST, 6)
    inputs = [event for event in timeline.events if event.kind == "input"]
    assert {event.bytes for event in inputs} == {16 * 256 * 4}
    assert not Recording.is_under_way()
    assert trained.fit((X,), batch_size=16, steps=2, progress=False).timeline is None


@pytest.mark.parametrize("sync", [*long(cn.Synchronous()), cn.Asynchronous()])
def test_a_slow_map_is_told_to_be_what_devices_wait_for(sync):
    """A batch takes 40 ms to come; what was fetched ahead while the step was traced is in the warm-up."""

    def slow(x):
        time.sleep(0.04)
        return x

    data = tf.data.Dataset.from_tensors(X).repeat()
    data = data.map(lambda x: tf.ensure_shape(tf.numpy_function(slow, [x], tf.float32), X.shape))
    trained = trainer(sync=sync)
    trained.fit(data, steps=3, progress=False)
    found = trained.profile(data, steps=10).breakdown()
    assert found.waiting_for("input") > 0.3
    assert found.advice()[0].startswith("input: ")


def test_training_is_the_same_with_a_profile():
    losses = []
    for profile in (None, range(2, 5)):
        keras.utils.set_random_seed(3)
        losses.append(trainer().fit((X,), batch_size=16, steps=6, profile=profile, progress=False).losses)
    assert losses[0] == losses[1]


def test_a_fit_that_ends_early_has_what_was_recorded():
    history = trainer().fit((X,), batch_size=16, steps=3, profile=range(2, 50), progress=False)
    assert history.timeline.steps == (2, 3)


def test_a_profile_that_never_happens_is_no_secret():
    with pytest.raises(cn.InvalidArgument, match="begins after the last of steps=3"):
        trainer().fit((X,), batch_size=16, steps=3, profile=range(9, 12), progress=False)
    with pytest.warns(UserWarning, match=r"profile=range\(9, 12\) recorded nothing: .* after 4 steps"):
        history = trainer().fit((X,), batch_size=16, epochs=1, profile=range(9, 12), progress=False)
    assert history.timeline is None


def test_a_step_that_fails_ends_the_recording():
    trained = trainer()
    bad = np.where(np.arange(64)[:, None] == 40, np.nan, X)
    with pytest.raises(cn.NotFinite):
        trained.fit((bad,), batch_size=16, steps=4, profile=range(2, 5), progress=False)
    assert not Recording.is_under_way()


def test_a_profiler_that_is_at_work(tmp_path):
    tf.profiler.experimental.start(str(tmp_path))
    try:
        with pytest.raises(cn.InvalidArgument, match="which is at work already"):
            trainer().fit((X,), batch_size=16, steps=3, profile=range(1, 3), progress=False)
    finally:
        tf.profiler.experimental.stop(save=False)


@pytest.mark.parametrize("bad", [5, range(3), range(3, 3), range(1, 9, 2), "10:15", range(5, 2)])
def test_ranges_that_are_none(bad):
    assert [problem.argument for problem in profile_problems(bad)] == ["profile"]
    with pytest.raises(cn.InvalidArgument, match=r"Try profile=range\(10, 15\)"):
        trainer().fit((X,), batch_size=16, steps=3, profile=bad, progress=False)


def test_too_little_data_and_no_steps():
    with pytest.raises(cn.InvalidArgument, match="Pass more batches"):
        trainer().profile(tf.data.Dataset.from_tensor_slices(X).batch(32))
    with pytest.raises(cn.InvalidArgument, match="steps=0"):
        trainer().profile((X,), steps=0, batch_size=8)


@pytest.mark.parametrize(
    ("devices", "said"), [(["/device:CPU:0"], 0), (["/device:CPU:0", "/device:GPU:1"], 1)]
)
def test_only_a_training_on_cards_is_told_what_the_profiler_does_not_see(monkeypatch, devices, said):
    """And not everyone who has some."""
    monkeypatch.setattr("colonnade.hardware.devices.has_cards", lambda: True)
    monkeypatch.setattr(Recording, "start", lambda self: None)
    profiling = Profiling(range(1, 3), lambda ops, first: pytest.fail("nothing is recorded"), devices)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        profiling.before(0, 0)
    assert len([w for w in told if "lacks what cards compute" in str(w.message)]) == said


def test_where_to_stop():
    profiling = Profiling(range(4, 8), lambda ops, first: pytest.fail("nothing is recorded"))
    assert [profiling.until(done) for done in (0, 2, 3, 6)] == [3, 1, 4, 1]
    assert profiling.until(7) > 10**9
    assert Profiling(None, lambda ops, first: pytest.fail("no")).until(0) > 10**9


def test_a_timeline_as_a_trace_for_perfetto():
    timeline = trainer().profile((X,), steps=1, batch_size=32)
    events = json.loads(timeline.to_chrome())["traceEvents"]
    update = next(event for event in events if event["name"] == "update")
    assert update["args"]["step"] == 4
    assert sum(event["args"].get("bytes", 0) for event in events) > 0
