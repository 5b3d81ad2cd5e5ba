"""A deep LSTM that says every token again, two steps later: a layer per device, on six devices.

python examples/06_deep_lstm/after.py            # six LSTM layers
python examples/06_deep_lstm/after.py split      # four, and an output layer in two parts
"""

import sys

import keras
import numpy as np
import tensorflow as tf

import colonnade as cn

cn.setup(virtual=6)  # with cards: cn.setup(6)

VOCABULARY, LENGTH, DELAY, WIDTH = 12, 8, 2, 48
STEPS, BATCH = 240, 64

keras.utils.set_random_seed(1)
rng = np.random.default_rng(1)
tokens = rng.integers(1, VOCABULARY, [4096, LENGTH]).astype("int32")
targets = np.concatenate([np.zeros([len(tokens), DELAY], "int32"), tokens[:, :-DELAY]], axis=1)

split = sys.argv[1:] == ["split"]
embedding = keras.layers.Embedding(VOCABULARY, WIDTH)
lstms = [keras.layers.LSTM(WIDTH, return_sequences=True) for _ in range(4 if split else 6)]
output = keras.layers.Dense(VOCABULARY)
if split:  # the vocabulary in two parts, and so are the logits, which are never put together
    output = cn.width.Dense(VOCABULARY, gather=False, devices=[4, 5])


def first(tokens):
    return lstms[0](embedding(tokens))


def deeper(layer):
    return lambda x: x + layer(x)  # what comes in goes on beside the layer, or six layers hardly learn


def last(x):
    return output(x + lstms[-1](x))


middle = [deeper(layer) for layer in (lstms[1:] if split else lstms[1:-1])]
stages = [first, *middle, output if split else last]


model = cn.Pipeline(stages, devices=len(stages), micro_batches=4)


def loss(x, y):
    logits = model(x)
    if split:
        losses, found = cn.width.softmax_cross_entropy(y, logits), cn.width.top_k(logits, 1)[1][..., 0]
    else:
        losses = keras.losses.sparse_categorical_crossentropy(y, logits, from_logits=True)
        found = tf.argmax(logits, axis=-1, output_type=y.dtype)
    right = tf.cast(found == y, tf.float32)
    return tf.reduce_mean(losses, axis=1), {"accuracy": tf.reduce_mean(right, axis=1)}


trainer = cn.Trainer(loss, keras.optimizers.Adam(4e-3), devices=model)
trainer.fit((tokens[:-512], targets[:-512]), batch_size=BATCH, steps=STEPS, log_every=80)
tested = trainer.evaluate((tokens[-512:], targets[-512:]), batch_size=256)
print(f"token accuracy {tested.metrics['accuracy']:.4f}, loss {tested.loss:.4f}")

print("who holds what")
homes = {variable.name: trainer.homes()[variable.name] for variable in trainer.parameters}
for device in sorted(set(homes.values())):
    mine = [variable for variable in trainer.parameters if homes[variable.name] == device]
    numbers = sum(variable.shape.num_elements() for variable in mine)
    names = ", ".join(variable.name.partition(":")[0] for variable in mine)
    print(f"  {device.rpartition('device:')[2]}  {numbers:6,} numbers in {names}")
timeline = model.timeline()
print(f"the last step took {timeline.slots:.1f} slots; {timeline.overlap:.0%} of the work overlapped")
