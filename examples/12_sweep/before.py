"""The digits of scikit-learn: twenty settings, one after another, with Optuna alone."""

import keras
import optuna
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import colonnade as cn

images, labels = load_digits(return_X_y=True)
x, x_test, y, y_test = train_test_split(
    (images / 16).astype("float32"), labels.astype("int32"), test_size=0.2, random_state=1
)


def objective(trial):
    cn.setup()
    keras.utils.set_random_seed(1)
    rate = trial.suggest_float("rate", 1e-3, 1.0, log=True)
    width = trial.suggest_int("width", 4, 128, log=True)
    layers = [keras.Input([64]), keras.layers.Dense(width, activation="relu"), keras.layers.Dense(10)]
    model = keras.Sequential(layers)

    def loss(images, labels):
        logits = model(images)
        right = keras.ops.equal(keras.ops.argmax(logits, axis=1), keras.ops.cast(labels, "int64"))
        losses = keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)
        return losses, {"accuracy": keras.ops.cast(right, "float32")}

    trainer = cn.Trainer(loss, keras.optimizers.SGD(rate, momentum=0.9))
    without_promise = cn.pruning(trial, "accuracy")
    trainer.fit((x, y), batch_size=64, steps=200, log_every=20, progress=False, callbacks=[without_promise])
    return trainer.evaluate((x_test, y_test), batch_size=360).metrics["accuracy"]


if __name__ == "__main__":
    study = optuna.create_study(direction="maximize")
    study.optimize(objective, n_trials=20)
    print(f"best accuracy {study.best_value:.3f} with {study.best_params}")
