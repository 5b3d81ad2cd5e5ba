"""Tensors on disk: what is written is read again, whole or in other slices, whatever the directory is."""

import numpy as np
import pytest
import tensorflow as tf
from families import long
from fresh import ROOT
from saves import batches, linear, saved

from colonnade.run.checkpoint import tensor_files
from colonnade.run.variables.part_offset import BAR


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


def test_what_is_written_is_read_again_and_by_tensorflow_too(tmp_path):
    tensors = {"a/b": tf.constant([[1.5, -2.0]]), "n": tf.constant(7, "int64"), "s": tf.constant("words")}
    tensor_files.write(tmp_path, "values", tensors)
    again = tensor_files.read(tmp_path, "values")
    assert again.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert again[name].dtype == tensor.dtype
        assert np.array_equal(again[name], tensor)
    assert tensor_files.read(tmp_path, "values", ["n"]).keys() == {"n"}
    assert tensor_files.kinds(tmp_path, "values") == {
        name: tf.TensorSpec(tensor.shape, tensor.dtype) for name, tensor in tensors.items()
    }
    plain = tf.train.load_checkpoint(str(tmp_path / "values"))
    assert np.array_equal(plain.get_tensor("a/b"), tensors["a/b"])


def test_slices_of_one_tensor_are_read_as_other_slices_and_as_the_whole(tmp_path):
    """As layers that are split by width do, on another number of devices."""
    whole = np.arange(14.0).reshape(7, 2)
    halves = {f"w{BAR}7 2 0,4:-": whole[:4], f"w{BAR}7 2 4,3:-": whole[4:]}
    tensor_files.write(tmp_path, "values", {name: tf.constant(part) for name, part in halves.items()})
    thirds = {f"w{BAR}7 2 {at},{size}:-": whole[at : at + size] for at, size in ((0, 3), (3, 2), (5, 2))}
    again = tensor_files.read(tmp_path, "values", [*thirds, "w"])
    for name, part in {**thirds, "w": whole}.items():
        assert np.array_equal(again[name], part), name
    assert tensor_files.kinds(tmp_path, "values") == {"w": tf.TensorSpec([7, 2], tf.float64)}
