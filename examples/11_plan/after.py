"""The same network: measured, planned, trained by the plan, and compared with what was predicted."""

import keras
import numpy as np

import colonnade as cn

cn.setup(virtual=4)  # with cards: cn.setup()

keras.utils.set_random_seed(1)
rng = np.random.default_rng(1)
x = rng.normal(size=(4096, 64)).astype("float32")
y = (x[:, 0] * x[:, 1] > 0).astype("int32")

hidden = [keras.layers.Dense(256, activation="relu") for _ in range(4)]
model = keras.Sequential([keras.Input([64]), *hidden, keras.layers.Dense(2)])


def loss(x, y):
    return keras.losses.sparse_categorical_crossentropy(y, model(x, training=True), from_logits=True)


plan = cn.plan(loss, keras.optimizers.SGD(0.1), x[:256], y[:256], layers=model, keep={"stage": 1})
print(plan)

trainer = cn.Trainer(loss, keras.optimizers.SGD(0.1), plan=plan)
history = trainer.fit((x, y), batch_size=256, epochs=4, progress=False)
predicted, measured = history.predicted.step, history.seconds_per_step
print(f"a step: predicted {1e3 * predicted:.2f} ms, measured {1e3 * measured:.2f} ms with the first call")
print(f"loss {trainer.evaluate((x, y), batch_size=256).loss:.3f}")
