import keras
import numpy as np
import optuna
import pytest

import colonnade as cn


@pytest.fixture
def trial():
    study = optuna.create_study(pruner=optuna.pruners.ThresholdPruner(upper=0.5, n_warmup_steps=25))
    return study.ask()


def fit(callback):
    w = keras.Variable([[0.0]])

    def loss(x, y):
        errors = keras.ops.squeeze((keras.ops.matmul(x, w) - y) ** 2, axis=1)
        return errors, {"error": errors}

    x = np.ones([8, 1], "float32")
    trainer = cn.Trainer(loss, keras.optimizers.SGD(0.0), devices=2)
    trainer.fit((x, x), batch_size=8, steps=60, log_every=10, progress=False, callbacks=[callback])
    return trainer


def test_a_training_without_promise_is_ended(trial):
    with pytest.raises(optuna.TrialPruned, match="error at step 30"):
        fit(cn.pruning(trial, "error"))
    values = trial.study.trials[0].intermediate_values
    assert values == {10: 1.0, 20: 1.0, 30: 1.0}


def test_a_metric_that_is_not_there(trial):
    with pytest.raises(cn.InvalidArgument, match="The loss function reports: loss, error"):
        fit(cn.pruning(trial, "accuracy"))
