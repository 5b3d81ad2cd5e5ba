import contextlib
import json
import os
import re
import shutil
import signal
import sys
import time
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from families import long
from fresh import COMMAND, ROOT, fresh, run

import colonnade as cn
from colonnade.run.checkpoint import saver
from colonnade.run.checkpoint.directory import Archive

RNG = np.random.default_rng(0)
X = RNG.normal(size=(103, 4)).astype("float32")
Y = (X.sum(axis=1, keepdims=True) > 0).astype("float32")


def batches(size=10):
    return tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(50, seed=5).batch(size)


def linear(devices=2, variables="auto", shape=(4, 1), dtype="float32", name="w", **options):
    w = tf.Variable(tf.zeros(shape, dtype), name=name)

    def loss(x, y):
        return tf.cast(tf.squeeze((tf.cast(x, w.dtype)[:, : shape[0]] @ w) ** 2, 1), "float32") - y[:, 0]

    optimizer = keras.optimizers.SGD(0.01, momentum=0.9, name="sgd")
    return w, cn.Trainer(loss, optimizer, devices=devices, variables=variables, **options)


def saved(folder, **options):
    return cn.Checkpoint(folder, **{"every": 4, "keep": None, **options})


def steps_in(folder):
    return sorted(int(path.name.removeprefix("step-")) for path in Path(folder).glob("step-*"))


def everything(trainer):
    return {name: np.asarray(v) for name, v in trainer._engine.state().variables().items()}


def assert_same(one, other):
    assert one.keys() == other.keys()
    assert [name for name in one if not np.array_equal(one[name], other[name])] == []


def noisy(variables, steps, folder=None):
    """Everything that a training has to remember: averages, two kinds of generators, slots, a schedule."""
    keras.backend.clear_session()
    keras.utils.set_random_seed(3)
    layers = keras.layers
    model = keras.Sequential(
        [keras.Input([4]), layers.Dense(5), layers.BatchNormalization(), layers.Dropout(0.3), layers.Dense(1)]
    )
    generator = tf.random.Generator.from_seed(7)

    def loss(x, y):
        return tf.squeeze((model(x, training=True) + generator.normal(tf.shape(y)) / 10 - y) ** 2, axis=1)

    schedule = keras.optimizers.schedules.ExponentialDecay(0.01, 5, 0.9)
    optimizer = keras.optimizers.Adam(schedule, use_ema=True)
    trainer = cn.Trainer(loss, optimizer, devices=3, variables=variables)
    data = tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(50).batch(10)
    checkpoint = saved(folder, every=7) if folder else None
    history = trainer.fit(data, steps=steps, epochs=4, checkpoint=checkpoint, progress=False)
    return history, everything(trainer)


@pytest.mark.parametrize("variables", ["shared", *long("partitioned", "mirrored")])
def test_a_run_that_was_cut_off_ends_like_one_that_was_not(tmp_path, variables):
    whole, wanted = noisy(variables, 30)
    noisy(variables, 10, tmp_path)  # 10 is between two rounds of the shuffle, for the next batch is the last
    resumed, found = noisy(variables, 30, tmp_path)
    assert resumed.resumed == 10
    assert resumed.losses == whole.losses[10:]
    assert_same(found, wanted)
    assert any(name.startswith("replicas/2/") for name in found)
    assert steps_in(tmp_path) == [7, 10, 14, 21, 28, 30]


@pytest.mark.parametrize(
    ("devices", "variables"), [(3, "mirrored"), *long((1, "partitioned"), (8, "shared"))]
)
def test_on_another_number_of_devices_the_stored_values_are_the_same_and_training_goes_on(
    tmp_path, devices, variables
):
    _, four = linear(4)
    four.fit(batches(), steps=6, epochs=2, checkpoint=saved(tmp_path), progress=False)
    _, unbroken = linear(1)
    unbroken.fit(batches(), steps=12, epochs=2, progress=False)
    values = tf.train.load_checkpoint(str(tmp_path / "step-000000000006" / "values"))
    w, other = linear(devices, variables)
    other.fit(batches(), steps=6, epochs=2, checkpoint=saved(tmp_path), progress=False)
    assert (other.step, other.examples) == (6, 60)
    for name, value in everything(other).items():
        assert np.array_equal(value, values.get_tensor(name)), name
    _, on = linear(devices, variables)
    on.fit(batches(), steps=12, epochs=2, checkpoint=saved(tmp_path), progress=False)
    # Sums of float32 in another order, over 12 steps.
    np.testing.assert_allclose(on.parameters[0], unbroken.parameters[0], rtol=1e-5, atol=1e-6)
    assert w.shape == (4, 1)


def split(devices, steps, folder):
    """Two layers of the same shape, so that they could be mistaken for each other."""
    keras.backend.clear_session()
    keras.utils.set_random_seed(1)
    wide = [cn.width.Dense(11, "tanh", devices=devices, dtype="float64") for _ in range(2)]
    model = keras.Sequential([keras.Input([11]), *wide, keras.layers.Dense(1, dtype="float64")])
    trainer = cn.Trainer(
        lambda x, y: tf.squeeze((model(x) - y) ** 2, axis=1), keras.optimizers.Adam(0.01), devices=1
    )
    data = (np.tile(X, 3)[:, :11].astype("float64"), Y.astype("float64"))
    trainer.fit(data, batch_size=12, steps=steps, checkpoint=saved(folder), progress=False)
    values = tf.train.load_checkpoint(str(folder / f"step-{steps:012d}" / "values"))
    return model, {name: values.get_tensor(name) for name in values.get_variable_to_shape_map()}


@pytest.mark.parametrize("devices", [3, *long(1)])
def test_layers_split_by_width_go_on_on_another_number_of_devices(tmp_path, devices):
    """The parts of a variable, and those of its slots, are slices of one tensor in the checkpoint."""
    four, unbroken = tmp_path / "four", tmp_path / "unbroken"
    model, values = split(4, 4, four)
    assert [value.shape for name, value in values.items() if "part" in name] == []
    assert sum(value.shape == (11, 11) for value in values.values()) == 6  # kernels, and two slots of each
    kernels = [layer.logical[0].numpy() for layer in model.layers[:2]]
    saved_kernels = [value for name, value in values.items() if re.match("parameters/.*kernel", name)]
    assert sum(np.array_equal(one, other) for one in kernels for other in saved_kernels) == 2
    _, wanted = split(1, 8, unbroken)
    copy = tmp_path / str(devices)
    shutil.copytree(four, copy)
    model, same = split(devices, 4, copy)
    assert len(model.layers[0].devices) == devices
    for layer, kernel in zip(model.layers, kernels, strict=False):
        assert np.array_equal(layer.logical[0].numpy(), kernel)
    assert_same(same, values)
    _, on = split(devices, 8, copy)
    assert on.keys() == wanted.keys()
    # Sums in another order, over 8 steps of Adam, which divides by gradients that may be small: in float64,
    # where that is far from any mistake.
    for name, value in on.items():
        np.testing.assert_allclose(value, wanted[name], rtol=1e-9, atol=1e-12, err_msg=name)


def test_a_variable_with_an_open_shape_goes_on(tmp_path):
    def fit(steps, length):
        w, _ = linear()
        extra = tf.Variable(tf.ones([length]), shape=tf.TensorShape([None]), trainable=False, name="open")
        trainer = cn.Trainer(
            lambda x, y: tf.squeeze(x @ w - y, 1) + 0 * tf.reduce_sum(extra),
            keras.optimizers.SGD(0.01, name="sgd"),
            devices=1,
        )
        history = trainer.fit(batches(), steps=steps, epochs=1, checkpoint=saved(tmp_path), progress=False)
        return history.resumed, extra.shape, extra.numpy().tolist()

    fit(3, length=2)
    assert fit(6, length=5) == (3, tf.TensorShape([None]), [1.0, 1.0])


def test_random_streams_on_another_number_of_devices_stay_apart(tmp_path):
    def make(devices):
        w, generator = tf.Variable(tf.zeros(1), name="w"), tf.random.Generator.from_seed(7)
        return cn.Trainer(
            lambda x: w * x[:, 0] + generator.normal(tf.shape(x)[:1]),
            keras.optimizers.SGD(0.1, name="sgd"),
            devices=devices,
        )

    data = tf.data.Dataset.from_tensor_slices(X).batch(12)
    make(2).fit(data, steps=3, checkpoint=saved(tmp_path), progress=False)
    trainer = make(3)
    trainer.fit(data, steps=3, checkpoint=saved(tmp_path), progress=False)
    own = [value.tolist() for name, value in everything(trainer).items() if name.startswith("replicas/")]
    manifest = json.loads((tmp_path / "step-000000000003" / "manifest.json").read_text())
    assert own[:2] == manifest["generators"]["StateVar"]
    assert len({tuple(state) for state in own}) == 3


@pytest.mark.parametrize("stops", [(11, 23), *long(((5, 10, 21, 22),))])
def test_a_repeated_shuffle_of_the_users_goes_on_exactly_too(tmp_path, stops):
    """Also between two rounds, where TensorFlow's iterator does not tell all of its state."""

    def fit(folder, steps):
        w, trainer = linear()
        data = batches().repeat()
        checkpoint = saved(folder, every=1) if folder else None
        trainer.fit(data, steps=steps, checkpoint=checkpoint, log_every=1, progress=False)
        return w.numpy()

    wanted = fit(None, 36)
    fit(tmp_path, 23)
    assert steps_in(tmp_path) == list(range(1, 24))
    for step in stops:
        copy = tmp_path.parent / f"{tmp_path.name}-{step}"
        copy.mkdir()
        shutil.copytree(tmp_path / f"step-{step:012d}", copy / f"step-{step:012d}")
        assert np.array_equal(fit(copy, 36), wanted), step


def counted(data, folder, steps=None, **options):
    """How often a training has seen each of 103 examples."""
    w = tf.Variable(0.0, name="w")
    seen = tf.Variable(tf.zeros(103, "int32"), trainable=False, name="seen")

    def loss(ids):
        seen.assign(tf.tensor_scatter_nd_add(seen, ids[:, None], tf.ones_like(ids)))
        return w * tf.cast(ids, "float32")

    trainer = cn.Trainer(loss, keras.optimizers.SGD(0.0, name="sgd"), devices=1)
    trainer.fit(data, steps=steps, checkpoint=saved(folder, every=50), progress=False, **options)
    return seen.numpy()


IDS = tf.data.Dataset.from_tensor_slices(np.arange(103, dtype="int32"))


@pytest.mark.parametrize("stop", [10, 17, *long(3, 7, 11, 22)])
def test_every_example_counts_once_per_epoch(tmp_path, stop):
    """Without any seed, wherever the run was cut: the batch that was fetched ahead is not lost."""

    def data():
        return IDS.shuffle(50).batch(10)

    assert counted(data(), tmp_path, stop, epochs=3).sum() == 10 * stop - 7 * (stop // 11)  # the last has 3
    assert counted(data(), tmp_path, epochs=3).tolist() == [3] * 103


@pytest.mark.parametrize("stop", [22, *long(8, 17)])
def test_every_example_counts_once_per_round_of_a_repeated_shuffle(tmp_path, stop):
    def data():
        return IDS.shuffle(50).batch(10).repeat(3)

    counted(data(), tmp_path, stop)
    assert counted(data(), tmp_path, 33).tolist() == [3] * 103


def test_what_comes_in_an_order_of_the_moment_is_kept_with_its_buffers(tmp_path):
    options = tf.data.Options()
    options.deterministic = False

    def data():
        slow = IDS.map(lambda i: (tf.strings.length(tf.strings.as_string(i)), i)[1], num_parallel_calls=4)
        return slow.shuffle(50).batch(10).with_options(options)

    counted(data(), tmp_path, 15, epochs=3)
    assert "iterator" in bundle(tmp_path / "step-000000000015")
    assert counted(data(), tmp_path, epochs=3).tolist() == [3] * 103


def bundle(folder):
    return tf.train.load_checkpoint(str(folder / "data")).get_variable_to_shape_map()


def test_a_shuffle_buffer_is_not_saved(tmp_path):
    """What a save costs does not grow with it."""
    wide = tf.data.Dataset.from_tensor_slices(np.zeros((1000, 1000), "float32"))
    w = tf.Variable(tf.zeros([1000, 1]), name="w")
    trainer = cn.Trainer(lambda x: (x @ w)[:, 0], keras.optimizers.SGD(0.0, name="sgd"), devices=2)
    trainer.fit(wide.shuffle(1000).batch(8), steps=3, checkpoint=saved(tmp_path), progress=False)
    assert sum(path.stat().st_size for path in tmp_path.glob("step-*/data.*")) < 300_000
    assert "iterator" not in bundle(tmp_path / "step-000000000003")


def test_other_data_are_refused(tmp_path):
    counted(IDS.batch(10), tmp_path, 5, epochs=1)
    backwards = tf.data.Dataset.from_tensor_slices(np.arange(103, dtype="int32")[::-1])
    with pytest.raises(cn.InvalidArgument, match=r"did not give the batches again.*the data are others"):
        counted(backwards.batch(10), tmp_path, epochs=1)
    with pytest.raises(cn.InvalidArgument, match=r"data='10 batches': had 11 at step 5"):
        counted(IDS.take(95).batch(10), tmp_path, epochs=1)


def test_arrays_go_on(tmp_path):
    whole, trainer = linear()
    trainer.fit((X, Y), batch_size=16, steps=20, progress=False)
    for steps in (9, 20):
        w, again = linear()
        again.fit((X, Y), batch_size=16, steps=steps, checkpoint=saved(tmp_path), progress=False)
    assert np.array_equal(w, whole)
    assert again.examples == trainer.examples


def test_a_generator_needs_a_choice(tmp_path):
    def generator():
        for i in range(0, 100, 10):
            yield X[i : i + 10], Y[i : i + 10]

    _, trainer = linear()
    with pytest.raises(cn.InvalidArgument, match=r'the place in it cannot be saved.*"skip".*"restart"'):
        trainer.fit(generator(), checkpoint=saved(tmp_path))
    assert steps_in(tmp_path) == []
    wanted, whole = linear()
    whole.fit(generator(), progress=False)
    for steps in (6, None):
        w, again = linear()
        again.fit(generator(), steps=steps, checkpoint=saved(tmp_path, data="skip"), progress=False)
    assert np.array_equal(w, wanted)
    _, finished = linear()
    history = finished.fit(generator(), checkpoint=saved(tmp_path, data="skip"), progress=False)
    assert (history.resumed, history.losses, finished.step) == (10, [], 10)
    _, restarted = linear()
    restarted.fit(generator(), steps=13, checkpoint=saved(tmp_path, data="restart"), progress=False)
    assert restarted.step == 13
    _, exact = linear()
    with pytest.raises(cn.InvalidArgument, match="was saved with data='restart'"):
        exact.fit(batches(), steps=13, checkpoint=saved(tmp_path), progress=False)


def test_a_dataset_with_a_hidden_state_needs_a_choice(tmp_path):
    _, trainer = linear()
    data = batches().map(lambda x, y: (x + tf.random.normal(tf.shape(x)), y))
    with pytest.raises(cn.InvalidArgument, match=r'is stateful.*"skip".*"restart"'):
        trainer.fit(data, checkpoint=saved(tmp_path), progress=False)
    assert (trainer.step, steps_in(tmp_path)) == (0, [])


def test_everything_that_does_not_fit_is_in_one_error(tmp_path):
    _, trainer = linear()
    trainer.fit(batches(), steps=1, checkpoint=saved(tmp_path), progress=False)
    for options, says in (
        ({"shape": (3, 1)}, [r"parameters/w='float32 \[3, 1\]': is float32 \[4, 1\] in the checkpoint"]),
        ({"dtype": "float64"}, [r"parameters/w='float64 \[4, 1\]': is float32 \[4, 1\] in the checkpoint"]),
        (
            {"name": "v"},
            [
                r"parameters/v='float32 \[4, 1\]': is not in the checkpoint",
                r"parameters/w='float32 \[4, 1\]': is in the checkpoint, and the training has no such",
                r"optimizer/sgd/v_0_momentum='float32 \[4, 1\]': is not in the checkpoint",
            ],
        ),
    ):
        w, other = linear(**options)
        with pytest.raises(cn.InvalidArgument) as error:
            other.fit(batches(), steps=2, checkpoint=saved(tmp_path), progress=False)
        for text in says:
            assert re.search(text, str(error.value)), str(error.value)
        assert not w.numpy().any()


def test_a_damaged_step_is_named_and_the_one_before_is_used(tmp_path):
    wanted, whole = linear()
    whole.fit(batches(), steps=12, epochs=2, progress=False)
    _, trainer = linear()
    trainer.fit(batches(), steps=8, epochs=2, checkpoint=saved(tmp_path), progress=False)
    values = tmp_path / "step-000000000008" / "values.data-00000-of-00001"
    flipped = bytearray(values.read_bytes())
    flipped[3] ^= 4
    values.write_bytes(flipped)
    w, again = linear()
    with pytest.warns(UserWarning, match=r"step-000000000008 is damaged: values\.data.*goes on from step 4"):
        history = again.fit(batches(), steps=12, epochs=2, checkpoint=saved(tmp_path), progress=False)
    assert history.resumed == 4
    assert np.array_equal(w, wanted)
    done = run([COMMAND, "checkpoints", str(tmp_path), "--verify"])
    assert done.returncode == 1
    assert re.findall(r"(\d+) │.*(whole|damaged: values\.data)", done.stdout) == [
        ("4", "whole"),
        ("8", "whole"),
        ("8", "damaged: values.data"),
        ("12", "whole"),
    ]
    for path in tmp_path.glob("step-*[0-9]"):
        (path / "manifest.json").write_text("{}")
    _, lost = linear()
    with pytest.raises(
        cn.DamagedCheckpoint, match=r"step-000000000004: manifest\.json does not have"
    ) as error:
        lost.fit(batches(), steps=12, epochs=2, checkpoint=saved(tmp_path), progress=False)
    assert len(error.value.flaws) == 3


def test_the_command_lists_what_is_saved(tmp_path):
    _, trainer = linear()
    trainer.fit(batches(), steps=6, epochs=2, checkpoint=saved(tmp_path, keep=1), progress=False)
    done = run([COMMAND, "checkpoints", str(tmp_path), "--json"])
    assert done.returncode == 0, done.stderr
    (facts,) = json.loads(done.stdout)
    assert (facts["step"], facts["examples"], facts["devices"], facts["whole"]) == (6, 60, 2, True)
    assert facts["verified"] is False
    (tmp_path / "step-000000000006" / "values.index").write_bytes(b"")
    done = run([COMMAND, "checkpoints", str(tmp_path)])
    assert done.returncode == 1
    assert "damaged: values.index has 0 bytes instead of" in done.stdout
    assert "--verify reads every byte" in done.stdout
    missing = run([COMMAND, "checkpoints", str(tmp_path / "nowhere")])
    assert missing.returncode == 2
    assert "is not a directory" in missing.stderr


def test_resume_false_refuses_what_is_there(tmp_path):
    fresh_start = saved(tmp_path, resume=False)
    _, trainer = linear()
    for _ in range(2):  # a second fit of the same program goes on
        trainer.fit(batches(), steps=3, checkpoint=fresh_start, progress=False)
    assert trainer.step == 6
    _, other = linear()
    with pytest.raises(cn.InvalidArgument, match="holds the checkpoints of a run"):
        other.fit(batches(), steps=3, checkpoint=fresh_start, progress=False)
    assert steps_in(tmp_path) == [3, 4, 6]


@pytest.mark.long
def test_a_program_with_several_fits_finds_its_place(tmp_path):
    def program(folder, fits, last=None):
        w, trainer = linear()
        data = batches()
        histories = []
        for number in range(fits):
            steps = last if number == fits - 1 else None
            checkpoint = saved(folder, every=5) if folder else None
            histories.append(trainer.fit(data, epochs=1, steps=steps, checkpoint=checkpoint, progress=False))
        return w.numpy(), histories

    wanted, _ = program(None, 3)
    program(tmp_path, 2, last=4)  # ends in its second fit
    found, histories = program(tmp_path, 3)
    assert [(h.resumed, len(h.losses)) for h in histories] == [(15, 0), (15, 7), (None, 11)]
    assert np.array_equal(found, wanted)


def test_what_ended_a_fit_is_remembered(tmp_path):
    def stop(record):
        return record.step == 4

    for expected in (None, 4):
        _, trainer = linear()
        said = pytest.warns(UserWarning, match="A callback ended this fit at step 4, and it stays ended")
        with said if expected else contextlib.nullcontext():
            history = trainer.fit(
                batches(), epochs=2, log_every=1, callbacks=[stop], checkpoint=saved(tmp_path), progress=False
            )
        assert (trainer.step, history.resumed) == (4, expected)
    assert history.records[-1].loss != 0.0
    _, other = linear()
    with pytest.raises(cn.InvalidArgument, match=r"epochs=3: the run was begun with epochs=2"):
        other.fit(batches(), epochs=3, checkpoint=saved(tmp_path), progress=False)
    with pytest.raises(cn.InvalidArgument, match="has another structure than at step 4"):
        other.fit(batches().map(lambda x, y: (x, y, y)), epochs=2, checkpoint=saved(tmp_path), progress=False)


@pytest.mark.long
def test_local_training_does_not_wait_long_for_a_join(tmp_path, monkeypatch):
    """A scheduler waits for 30 seconds, and the next join may be far away."""
    monkeypatch.setattr(saver, "PATIENCE", 0.2)

    def fit(steps, folder=None, told=None):
        _, trainer = linear(sync=cn.LocalSGD(1000))
        trainer.fit(
            batches().repeat(),
            steps=steps,
            log_every=1,
            callbacks=[told] if told else [],
            checkpoint=saved(folder) if folder else None,
            progress=False,
        )
        return everything(trainer)

    def told(record):
        if record.step == 5:
            os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.02)

    with pytest.raises(SystemExit) as left:
        fit(1000, tmp_path, told)
    assert left.value.code == 75
    (step,) = steps_in(tmp_path)
    assert 5 < step < 60
    assert_same(fit(60, tmp_path), fit(60))


def test_seeded_legacy_random_numbers_are_said_to_be_lost(tmp_path):
    tf.random.set_seed(1)
    w = tf.Variable(tf.zeros([4, 1]), name="w")
    trainer = cn.Trainer(
        lambda x, y: tf.squeeze(tf.nn.dropout(x @ w, 0.5) - y, axis=1),
        keras.optimizers.SGD(0.01, name="sgd"),
        devices=2,
    )
    with pytest.warns(UserWarning, match=r"will not be the same.*tf\.random ops"):
        trainer.fit(batches(), steps=2, checkpoint=saved(tmp_path), progress=False)


def test_settings_are_checked_all_at_once(tmp_path):
    with pytest.raises(cn.InvalidArgument) as error:
        cn.Checkpoint("", every=0, keep=0, resume="yes", data="again")
    assert {problem.argument for problem in error.value.problems} == {
        "directory",
        "every",
        "keep",
        "resume",
        "data",
    }
    _, trainer = linear()
    with pytest.raises(cn.InvalidArgument, match=r"must be a cn\.Checkpoint"):
        trainer.fit(batches(), checkpoint=str(tmp_path))
    (tmp_path / "file").touch()
    with pytest.raises(cn.InvalidArgument, match="cannot be written"):
        trainer.fit(batches(), checkpoint=saved(tmp_path / "file" / "run"), progress=False)


def test_the_directory_of_another_run_is_refused(tmp_path):
    _, trainer = linear()

    def second(record):
        _, other = linear()
        with pytest.raises(cn.CheckpointInUse, match=f"process {os.getpid()} on"):
            other.fit(batches(), checkpoint=saved(tmp_path), progress=False)

    trainer.fit(batches(), steps=2, callbacks=[second], checkpoint=saved(tmp_path), progress=False)


FULL = """
import os, keras, shutil
from pathlib import Path
import colonnade as cn
import tensorflow as tf
cn.setup(virtual=2)
folder = Path({folder!r})
w = tf.Variable(tf.random.normal([300, 300]), name="w")
trainer = cn.Trainer(lambda x: tf.reduce_sum((x @ w) ** 2, 1), keras.optimizers.SGD(1e-6), devices=2)
data = tf.data.Dataset.from_tensor_slices(tf.ones([200, 300])).batch(4)
checkpoint = cn.Checkpoint(folder, every=5, keep=None)
try:
    trainer.fit(data, checkpoint=checkpoint, progress=False, log_every=1)
except cn.DiskFull as error:
    print(error)
before = trainer.step
steps = [int(path.name[5:]) for path in sorted(folder.glob("step-*"))]
print(before > steps[-1], steps, os.listdir(folder))
trainer.train_on_batch(tf.ones([4, 300]))
print(trainer.step == before + 1)
shutil.rmtree(folder / f"step-{{steps[0]:012d}}")
history = trainer.fit(data, epochs=1, steps=steps[-1] + 5, checkpoint=checkpoint, progress=False)
print(history.resumed == steps[-1], trainer.step == steps[-1] + 5)
"""


def test_a_full_disk(tmp_path):
    """On a file system of 2 MiB, which lives and dies with the process."""
    enter = ["unshare", "--mount", *([] if os.getuid() == 0 else ["--map-root-user"])]
    mount = f"mount -t tmpfs -o size=2m tmpfs {tmp_path}"
    if shutil.which("unshare") is None or run([*enter, "sh", "-c", mount]).returncode:
        pytest.skip("a file system of one's own cannot be mounted here: unshare and mount are not allowed")
    program = tmp_path.parent / f"{tmp_path.name}.py"
    program.write_text(FULL.format(folder=str(tmp_path)))
    done = run([*enter, "sh", "-c", f"{mount} && exec {sys.executable} {program}"])
    assert done.returncode == 0, done.stderr
    said, older, on, resumed = done.stdout.splitlines()
    assert re.match(r"the disk is full: step \d+ could not be saved in .*Older checkpoints are whole", said)
    assert older.startswith("True [5")
    assert ".new-" not in older
    assert (on, resumed) == ("True", "True True")


@pytest.mark.long
def test_a_limit_on_the_size_of_files_is_named_like_a_full_disk(tmp_path):
    said = fresh(
        f"""
        import keras, os, resource, signal
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
        w = tf.Variable(tf.random.normal([300, 300]), name="w")
        trainer = cn.Trainer(lambda x: tf.reduce_sum(x @ w, 1), keras.optimizers.SGD(1e-6), devices=2)
        try:
            saved = cn.Checkpoint({str(tmp_path)!r})
            trainer.fit(tf.ones([8, 300]), batch_size=4, steps=2, checkpoint=saved, progress=False)
        except cn.DiskFull as error:
            print(error.step, os.listdir({str(tmp_path)!r}))
        """,
        virtual=2,
    )
    assert said.strip() == "2 ['.lock']"


def test_kills_signals_and_a_second_launch(tmp_path):
    """In processes of their own; a fixture for three tests would be made by each worker."""
    done = run([sys.executable, str(ROOT / "tests" / "killed.py"), str(tmp_path), "test"], timeout=500)
    assert done.returncode == 0, done.stderr
    happened = json.loads(done.stdout)
    kills = happened["random"]
    assert kills["kills"] >= 10
    assert kills["inside a save"] >= 4
    assert kills["as promised"] == kills["trainings"] >= 1, kills
    for told in happened["signals"].values():
        assert told["code"] == 75
        assert told["seconds"] < 30
        assert told["equal"]
        assert f"step {told['saved']} is saved in" in told["says"]
        assert "To go on, run the same again:" in told["says"]
        assert told["says"].rstrip().endswith(" test")
    assert happened["launches"] == {"refused": 1, "went on": 1}


def until_saved(folder, step):
    while step not in steps_in(folder):
        time.sleep(0.01)


def taken_away(folder, how):
    """A callback: at step 6, between two saves, the directory is removed, moved, or loses its lock."""

    def take(record):
        if record.step == 6:
            until_saved(folder, 4)
            if how == "removed":
                shutil.rmtree(folder)
            elif how == "moved":
                folder.rename(folder.with_name("elsewhere"))
            elif how == "replaced":
                folder.rename(folder.with_name("elsewhere"))
                folder.mkdir()
            else:
                (folder / ".lock").unlink()

    return take


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("removed", "the directory was removed or moved"),
        *long(("moved", "the directory was removed or moved"), ("replaced", r"\.lock in it was removed")),
        ("unlocked", r"the file \.lock in it was removed"),
    ],
)
def test_a_directory_that_is_taken_away_is_one_clear_error(tmp_path, how, says):
    folder = tmp_path / "run"
    w, trainer = linear()
    options = {"log_every": 1, "callbacks": [taken_away(folder, how)], "progress": False}
    with pytest.raises(cn.LostCheckpoint, match=f"step 8 could not be saved.*{says}"):
        trainer.fit(batches(), epochs=2, checkpoint=saved(folder), **options)
    assert trainer.step >= 8
    assert np.isfinite(w).all()
    if how != "removed":
        where = folder.with_name("elsewhere") if how in ("moved", "replaced") else folder
        _, again = linear()
        assert again.fit(batches(), epochs=2, checkpoint=saved(where), progress=False).resumed == 4


def test_two_programs_never_save_beside_each_other(tmp_path):
    """Somebody deletes the lock, and starts the training a second time while the first one trains."""
    _, second = linear()
    seconds = []

    def start_another(record):
        if record.step == 6:
            until_saved(tmp_path, 4)
            (tmp_path / ".lock").unlink()
            seconds.append(second.fit(batches(), epochs=2, checkpoint=saved(tmp_path), progress=False))

    _, first = linear()
    with pytest.raises(cn.LostCheckpoint, match="another program may save there now"):
        first.fit(
            batches(),
            epochs=2,
            checkpoint=saved(tmp_path),
            log_every=1,
            callbacks=[start_another],
            progress=False,
        )
    assert seconds[0].resumed == 4
    assert steps_in(tmp_path) == [4, 8, 12, 16, 20, 22]
    assert all(one.flaw is None for one in Archive(tmp_path).saved(thorough=True))


@pytest.mark.parametrize("name", ["a[b]*?", *long("[!a]", "back\\slash", "{x,y} $HOME ~")])
def test_any_name_of_a_directory(tmp_path, name):
    for steps in (3, 6):
        w, trainer = linear()
        history = trainer.fit(batches(), steps=steps, checkpoint=saved(tmp_path / name), progress=False)
    assert history.resumed == 3
    wanted, whole = linear()
    whole.fit(batches(), steps=6, progress=False)
    assert np.array_equal(w, wanted)


def test_no_pickle_anywhere():
    sources = {
        path: path.read_text().replace("allow_pickle=False", "") for path in (ROOT / "src").rglob("*.py")
    }
    assert [path for path, text in sources.items() if "pickle" in text] == []


@pytest.mark.long
def test_ctrl_c_at_a_prompt_returns(tmp_path):
    """Nobody wants to lose his session with the fit."""
    said = fresh(
        f"""
        import os, signal, sys, threading, keras
        sys.ps1 = ">>> "
        w = tf.Variable(0.0, name="w")
        trainer = cn.Trainer(lambda x: w * x, keras.optimizers.SGD(0.1), devices=2)
        timer = threading.Timer(1.5, lambda: os.kill(os.getpid(), signal.SIGINT))
        timer.start()
        saved = cn.Checkpoint({str(tmp_path)!r})
        history = trainer.fit(tf.ones(4), batch_size=4, steps=10**7, checkpoint=saved, progress=False)
        print(history.interrupted, trainer.step > 0)
        """,
        virtual=2,
    )
    assert said.split() == ["True", "True"]
    assert steps_in(tmp_path)
