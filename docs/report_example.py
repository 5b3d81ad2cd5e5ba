"""Make the run of the example page again: `python docs/report_example.py [DIRECTORY]`.

A small network learns scikit-learn's digits on four virtual devices, is saved now and then, and some of
its steps are profiled. What `logdir=` holds after that, without the TensorBoard summaries, is kept here;
the page is made of it whenever the site is built.
"""

import shutil
import sys
import tempfile
from pathlib import Path

import keras
from sklearn.datasets import load_digits

import colonnade as cn

FOLDER = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "report_example"
KEPT = ("run.json", "metrics.jsonl", "progress.jsonl", "timeline.json")

cn.setup(virtual=4)
keras.utils.set_random_seed(1)

x, y = load_digits(return_X_y=True)
x = (x / 16).astype("float32").reshape(-1, 8, 8, 1)
layers = keras.layers
model = keras.Sequential(
    [
        keras.Input([8, 8, 1]),
        layers.Conv2D(32, 3, activation="relu"),
        layers.Conv2D(64, 3, activation="relu"),
        layers.Flatten(),
        layers.Dense(128, activation="relu"),
        layers.Dense(10),
    ],
    name="digits",
)


def loss(x, y):
    logits = model(x, training=True)
    losses = keras.losses.sparse_categorical_crossentropy(y, logits, from_logits=True)
    return losses, {"accuracy": keras.metrics.sparse_categorical_accuracy(y, logits)}


trainer = cn.Trainer(loss, keras.optimizers.Adam(1e-3), devices=4, variables="mirrored")
trainer.memory(x[:256], y[:256])
with tempfile.TemporaryDirectory() as folder:
    log = Path(folder) / "digits"
    saves = cn.Checkpoint(Path(folder) / "saved", every=100)
    trainer.fit(
        (x, y),
        batch_size=256,
        steps=600,
        log_every=5,
        logdir=log,
        checkpoint=saves,
        profile=range(98, 104),
        progress=False,
    )
    FOLDER.mkdir(exist_ok=True)
    for name in KEPT:
        shutil.copy(log / name, FOLDER / name)
