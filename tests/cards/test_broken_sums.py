"""What a user reads when a card does not come to a sum of NCCL. Such a process is of no use afterwards."""

import subprocess
import sys

PROGRAM = """
import conftest, keras, numpy as np, tensorflow as tf
import colonnade as cn
from colonnade.hardware.probes import collective

collective.PATIENCE = 0.5
w = tf.Variable(tf.ones([4, 1]))

def loss(x):
    # The others wait for whoever has large numbers.
    turns = tf.where(tf.reduce_max(x) < 100.0, 1, 2_000_000)
    (late,) = tf.while_loop(lambda i: i < turns, lambda i: [i + 1], [0])
    return tf.squeeze((x + 0.0 * tf.cast(late, tf.float32)) @ w, 1) ** 2

trainer = cn.Trainer(loss, keras.optimizers.SGD(0.01), devices=4, reduce="nccl")
good = np.ones([8, 4], "float32")
slow = good.copy()
slow[3] = 1000.0  # of the second card
trainer.train_on_batch(good)
before = w.numpy()
for batch in (slow, good):
    try:
        trainer.train_on_batch(batch)
    except (cn.ColonnadeError, tf.errors.OpError) as error:
        print(type(error).__name__, str(error).replace(chr(10), " "))
assert (w.numpy() == before).all()
"""


def test_it_says_that_the_process_must_be_started_again():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.strip().splitlines()
    assert len(lines) == 2
    for line in lines:
        assert line.startswith('BrokenSums reduce="nccl": a sum over the cards was broken off')
        assert "Start the program again" in line
