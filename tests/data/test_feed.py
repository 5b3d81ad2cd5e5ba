"""What goes in as data arrives in the loss function as it was."""

from collections import OrderedDict, namedtuple

import keras
import numpy as np
import pytest
import tensorflow as tf
from families import long

import colonnade as cn

Pair = namedtuple("Pair", ["z", "a"])


def trainer(loss, **options):
    return cn.Trainer(loss, keras.optimizers.SGD(0.0), devices=2, **options)


def numbered(rows, number):
    return np.full(rows, number, "float32")


def unsorted(rows):
    """Keys that are not sorted, at every level, each with a number of its own."""
    return OrderedDict(
        x=numbered(rows, 1.0),
        a={"y": numbered(rows, 2.0), "b": numbered(rows, 3.0)},
        m=Pair({"q": numbered(rows, 4.0), "p": numbered(rows, 5.0)}, numbered(rows, 6.0)),
    )


FORMS = {
    "arrays": lambda: {"data": unsorted(12), "batch_size": 4},
    "a dataset": lambda: {"data": tf.data.Dataset.from_tensor_slices(unsorted(12)).batch(4)},
    "a generator": lambda: {"data": (unsorted(4) for _ in range(3))},
    "a list": lambda: {"data": [unsorted(4) for _ in range(3)]},
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("form", "sync"),
    [
        *((form, cn.Synchronous()) for form in FORMS),
        *(("a dataset", cn.Asynchronous()), ("a list", cn.LocalSGD(2))),
        *long(*((form, cn.Asynchronous()) for form in FORMS if form != "a dataset")),
        *long(*((form, cn.LocalSGD(2)) for form in FORMS if form != "a list")),
    ],
    ids=str,
)
def test_a_dict_arrives_with_its_own_values(form, sync):
    w = tf.Variable(1.0)
    seen = {
        "x": lambda b: b["x"],
        "y": lambda b: b["a"]["y"],
        "b": lambda b: b["a"]["b"],
        "q": lambda b: b["m"].z["q"],
        "p": lambda b: b["m"].z["p"],
        "a": lambda b: b["m"].a,
    }

    def loss(b):
        return b["x"] * w, {name: value(b) for name, value in seen.items()}

    made = trainer(loss, sync=sync)
    history = made.fit(**FORMS[form](), progress=False)
    assert history.losses == [1.0, 1.0, 1.0]
    expected = {"x": 1.0, "y": 2.0, "b": 3.0, "q": 4.0, "p": 5.0, "a": 6.0}
    assert history.records[-1].metrics == expected
    if isinstance(sync, cn.Synchronous):
        assert made.evaluate(**FORMS[form]()).metrics == expected


def test_a_dict_arrives_in_single_steps_and_in_make_parallel():
    w = tf.Variable(1.0)
    made = trainer(lambda b: b["x"] * w + 0 * b["a"]["y"])
    assert [made.train_on_batch(unsorted(4)).loss for _ in range(2)] == [1.0, 1.0]
    found = cn.make_parallel(lambda b: {"z": b["x"], "y": b["a"]["y"], "p": b["m"].z["p"]}, 2, b=unsorted(4))
    assert {name: value.numpy().tolist() for name, value in found.items()} == {
        "z": [1.0] * 4,
        "y": [2.0] * 4,
        "p": [5.0] * 4,
    }


@pytest.mark.parametrize("sync", [cn.Synchronous(), cn.Asynchronous()], ids=repr)
def test_a_list_of_batches_is_gone_through_again(sync):
    w = tf.Variable(1.0)
    made = trainer(lambda x: x * w, sync=sync)
    batches = [numbered(2, i) for i in (1.0, 2.0, 3.0)]
    assert made.fit(batches, epochs=3, progress=False).losses == [1.0, 2.0, 3.0] * 3


def test_an_iterator_cannot_be_gone_through_again():
    w = tf.Variable(1.0)
    made = trainer(lambda x: x * w)
    with pytest.raises(cn.InvalidArgument, match="an iterator is at its end"):
        made.fit(iter([numbered(2, 1.0)]), epochs=2, progress=False)
    assert made.fit(iter([numbered(2, 1.0)]), epochs=1, progress=False).losses == [1.0]


@pytest.mark.parametrize("sync", [cn.Synchronous(), cn.Asynchronous()], ids=repr)
def test_of_a_generator_a_fit_takes_as_many_batches_as_it_makes_steps(sync):
    w = tf.Variable(1.0)
    made, batches = trainer(lambda x: x * w, sync=sync), (numbered(4, float(i)) for i in range(100))
    assert made.fit(batches, steps=3, progress=False).losses == [0.0, 1.0, 2.0]
    assert made.fit(batches, steps=2, progress=False).losses == [3.0, 4.0]
    assert next(batches)[0] == 5.0


@pytest.mark.parametrize("later", [np.array([1.5, 2.5]), np.array([2**33, 1]), [True, False], 0.5], ids=repr)
def test_a_later_batch_of_another_dtype_is_refused_and_not_cut_to_the_first(later):
    """TensorFlow makes 1 of 1.5, and 0 of 2**33, where the first batch has whole numbers of 32 bits."""
    w = tf.Variable(1.0)
    made = trainer(lambda x, by: tf.cast(x, tf.float32) * w)
    first = np.array([1, 2], "int32")
    for call in (lambda data: made.fit(data, progress=False), made.evaluate):
        second = (first, later) if np.isscalar(later) else (np.array(later), 1)
        with pytest.raises(tf.errors.InvalidArgumentError, match="later batch, and was int32 in the first"):
            call([(first, 1), second])


def test_texts_and_numbers_of_python_have_one_dtype_in_all_batches():
    w = tf.Variable(1.0)
    made = trainer(lambda words, by: tf.cast(tf.strings.length(words), tf.float32) * w * by)
    data = [(np.array(["a", "bcd"]), 0.5), (np.array(["efghi", "k"]), 2.0)]
    assert made.fit(data, progress=False).losses == [1.0, 6.0]


def padded(widths, shape=(None,)):
    """Batches of two rows of ones, as wide as their widest; some widths repeat and come back."""
    rows = tf.data.Dataset.from_generator(
        lambda: (np.ones(n, "float32") for n in widths), output_signature=tf.TensorSpec(shape, tf.float32)
    )
    return rows.padded_batch(2)


WIDTHS = (3, 3, 3, 3, 5, 4, 4, 4, 3, 3, 2)
SUMS = [3.0, 3.0, 4.5, 4.0, 3.0, 2.0]


@pytest.mark.parametrize("sync", [cn.Synchronous(), cn.Asynchronous(), *long(cn.LocalSGD(2))], ids=repr)
def test_padded_batches_of_several_widths(sync):
    w = tf.Variable(1.0)
    made = trainer(lambda x: tf.reduce_sum(x * w, 1), sync=sync)
    assert made.fit(padded(WIDTHS), progress=False).losses == SUMS
    ones = (np.ones([2, n], "float32") for n in (3, 3, 5))
    assert made.fit(ones, progress=False).losses == [3.0, 3.0, 5.0]
    assert made.evaluate(padded(WIDTHS)).loss == pytest.approx(sum(WIDTHS) / len(WIDTHS))


@pytest.mark.parametrize("sync", [cn.Synchronous(), *long(cn.LocalSGD(2))], ids=repr)
def test_ragged_batches(sync):
    w = tf.Variable(1.0)
    made = trainer(lambda x: tf.reduce_sum(x * w, 1), sync=sync)
    rows = tf.ragged.constant([[1.0] * n for n in WIDTHS])
    assert made.fit(tf.data.Dataset.from_tensor_slices(rows).batch(2), progress=False).losses == SUMS
    assert made.fit([rows[i : i + 2] for i in (0, 4)], progress=False).losses == [3.0, 4.5]
    assert [made.train_on_batch(rows[i : i + 2]).loss for i in (0, 4)] == [3.0, 4.5]


@pytest.mark.parametrize("sync", [*long(cn.Synchronous()), cn.LocalSGD(2)], ids=repr)
def test_sparse_batches(sync):
    w = tf.Variable(tf.ones([5, 1]))
    made = trainer(lambda x: tf.sparse.sparse_dense_matmul(x, w)[:, 0], sync=sync)
    dense = np.array([[1.0] * n + [0.0] * (5 - n) for n in WIDTHS], "float32")
    data = tf.data.Dataset.from_tensor_slices(tf.sparse.from_dense(dense)).batch(2)
    assert made.fit(data, progress=False).losses == SUMS
    parts = [tf.sparse.from_dense(dense[i : i + 2]) for i in (0, 4)]
    assert made.fit(parts, progress=False).losses == [3.0, 4.5]
    assert [made.train_on_batch(part).loss for part in parts] == [3.0, 4.5]


def test_a_tuple_of_one_tuple_is_one_argument():
    """As in a single step, and for Keras: the two are the input."""
    w = tf.Variable(1.0)
    made = trainer(lambda pair, other=None: pair[0] * w + (pair[1] if other is None else np.nan))
    pair = (numbered(4, 1.0), numbered(4, 2.0))
    dataset = tf.data.Dataset.from_tensor_slices((pair,)).batch(4)
    for data, options in ((dataset, {}), ([(pair,)], {}), ((pair,), {"batch_size": 4, "steps": 1})):
        assert made.fit(data, progress=False, **options).losses == [3.0]
    assert made.train_on_batch(pair).loss == made.evaluate(dataset).loss == 3.0


@pytest.mark.parametrize("kind", ["sparse", "ragged"])
@pytest.mark.parametrize("sync", [cn.Synchronous(), *long(cn.LocalSGD(1))], ids=repr)
def test_a_loss_that_is_one_number_for_a_slice_counts_by_its_rows_whatever_batches_are_made_of(sync, kind):
    rows = np.array([[1.0] * n + [0.0] * (5 - n) for n in (1, 2, 5, 3, 4)])
    dense = tf.constant(rows)
    batch = tf.sparse.from_dense(dense) if kind == "sparse" else tf.RaggedTensor.from_tensor(dense)
    w = tf.Variable(tf.ones([5], tf.float64))

    def loss(x):
        values = tf.sparse.to_dense(x) if kind == "sparse" else x.to_tensor(shape=[None, 5])
        return tf.reduce_mean(tf.linalg.matvec(values, w))

    made = cn.Trainer(loss, keras.optimizers.SGD(0.5), devices=2, sync=sync)
    assert made.train_on_batch(batch).loss == pytest.approx(3.0)
    np.testing.assert_allclose(w, 1 - 0.5 * rows.mean(axis=0), rtol=1e-12)


def test_ragged_and_sparse_batches_are_refused_by_an_asynchronous_fit():
    w = tf.Variable(1.0)
    made = trainer(lambda x: tf.reduce_sum(x * w, 1), sync=cn.Asynchronous())
    for batch in (tf.ragged.constant([[1.0], [1.0, 1.0]]), tf.sparse.from_dense(np.eye(2, dtype="float32"))):
        with pytest.raises(cn.InvalidArgument, match="ragged or sparse"):
            made.fit([batch], progress=False)


@pytest.mark.parametrize("sync", [cn.Synchronous(), cn.Asynchronous()], ids=repr)
def test_a_scalar_may_come_first(sync):
    w = tf.Variable(1.0)
    made = trainer(lambda s, x: x * w * s, sync=sync)
    data = tf.data.Dataset.from_tensor_slices(numbered(10, 1.0)).batch(4).map(lambda x: (tf.constant(2.0), x))
    assert made.fit(data, progress=False).losses == [2.0, 2.0, 2.0]


def test_arrays_in_a_list_are_told_to_be_a_tuple():
    made = trainer(lambda x, y: x)
    with pytest.raises(cn.InvalidArgument, match=r"pass a tuple: \(x, y\)"):
        made.fit([numbered(4, 1.0), numbered(4, 1.0)], batch_size=2)
