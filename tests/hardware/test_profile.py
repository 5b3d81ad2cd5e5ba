import tensorflow as tf
from kernels import plain


def test_profiler_events_have_times():
    from colonnade.hardware.profile import profile

    f = tf.function(lambda x: tf.linalg.matmul(x, x))
    x = tf.ones([200, 200])
    f(x)
    (event,) = [event for event in profile(lambda: f(x)) if plain(event.op) == "MatMul"]
    assert 0 < event.end - event.start < 10
