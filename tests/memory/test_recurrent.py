"""An LSTM as cards compute it, in one op that no processor has, is estimated all the same."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import colonnade as cn
from colonnade.run.memory.recurrent import LEFT_OUT, replaced

TIME, BATCH, WIDTH, UNITS = 5, 3, 4, 6
SIZE = 4 * UNITS * (WIDTH + UNITS + 2)


def lstm(x, weights):
    zeros = tf.zeros([1, BATCH, UNITS])
    return tf.raw_ops.CudnnRNNV3(
        input=x, input_h=zeros, input_c=zeros, params=weights, sequence_lengths=tf.fill([BATCH], TIME)
    )


def test_stand_ins_have_the_shapes_of_what_they_stand_for():
    def step(x, weights):
        with tf.GradientTape() as tape:
            tape.watch([x, weights])
            y = lstm(x, weights)
        return [y.output, y.output_h, y.output_c, *tape.gradient(y.output, [x, weights])]

    specs = tf.TensorSpec([TIME, BATCH, WIDTH]), tf.TensorSpec([SIZE])
    concrete = tf.function(step, autograph=False).get_concrete_function(*specs)
    names = [tensor.name for tensor in concrete.inputs], [tensor.name for tensor in concrete.outputs]
    graph = replaced(concrete.graph.as_graph_def())

    def imported(*args):
        return tf.graph_util.import_graph_def(
            graph, input_map=dict(zip(names[0], args, strict=True)), return_elements=names[1], name=""
        )

    results = tf.compat.v1.wrap_function(imported, specs)(*(tf.zeros(spec.shape) for spec in specs))
    found = [tuple(result.shape) for result in results]
    state = (1, BATCH, UNITS)
    assert found == [(TIME, BATCH, UNITS), state, state, (TIME, BATCH, WIDTH), (SIZE,)]


@pytest.mark.long
def test_an_estimate_is_given_and_says_what_it_leaves_out():
    weights = tf.Variable(tf.zeros([SIZE]))

    def loss(x):
        x = tf.transpose(x, [1, 0, 2])
        return tf.reduce_mean(lstm(x, weights).output, axis=[0, 2])

    trainer = cn.Trainer(loss, keras.optimizers.Adam(), devices=1)
    with pytest.warns(UserWarning, match=LEFT_OUT):
        memory = trainer.memory(np.zeros([BATCH, TIME, WIDTH], "float32"))
    (device,) = memory.devices
    assert device.parameters == 4 * SIZE
    assert device.slots >= 8 * SIZE
