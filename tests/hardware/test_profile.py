import pytest
import tensorflow as tf
from kernels import plain


def test_profiler_events_have_times():
    from colonnade.hardware.profile import profile

    f = tf.function(lambda x: tf.linalg.matmul(x, x))
    x = tf.ones([200, 200])
    f(x)
    (event,) = [event for event in profile(lambda: f(x)) if plain(event.op) == "MatMul"]
    assert 0 < event.end - event.start < 10


def test_marks_are_events_while_something_is_recorded():
    from colonnade.hardware.profile import MARK, Recording, mark

    with mark("before 1"):
        pass
    recording = Recording()
    recording.start()
    assert Recording.is_under_way()
    with mark("slice CPU:1 7"):
        tf.ones([2]).numpy()
    ops = recording.stop()
    assert not Recording.is_under_way()
    assert [op.name for op in ops if op.op == MARK] == ["slice CPU:1 7"]


def test_elements_of_a_dataset_have_their_size():
    from colonnade.hardware.profile import FETCH, Recording

    dataset = tf.data.Dataset.from_tensors(tf.ones([10, 10])).repeat(3)
    run = tf.function(lambda it: it.get_next_as_optional().get_value())
    iterator = iter(dataset)
    run(iterator)
    recording = Recording()
    recording.start()
    run(iterator)
    (fetch,) = [op for op in recording.stop() if op.op == FETCH]
    assert fetch.bytes == 400
    assert fetch.end > fetch.start


def test_a_compiled_function_has_a_name_and_times():
    """TensorFlow records its start and its end; seen with 2.21."""
    from colonnade.hardware.profile import profile

    inner = tf.function(lambda x: x @ x + 1.0, jit_compile=True)

    @tf.function
    def outer(x):
        with tf.name_scope("update_0_sums_8"):
            return inner(x)

    x = tf.ones([300, 300])
    outer(x)
    found = [op for op in profile(lambda: outer(x)) if op.name.startswith("update_0_sums_8/")]
    assert len(found) == 1
    assert 0 < found[0].end - found[0].start < 10


def test_a_second_recording_is_refused_by_tensorflow():
    from colonnade.hardware.profile import Recording

    first = Recording()
    first.start()
    try:
        with pytest.raises(tf.errors.AlreadyExistsError):
            Recording().start()
    finally:
        first.stop()
    assert not Recording.is_under_way()
