import sys

import optuna
import pytest
from fresh import ROOT, run

from colonnade.sweeps.slots.worker import attempt


def raises(error):
    def objective(trial):
        raise error

    return objective


@pytest.mark.parametrize(
    ("objective", "says"),
    [
        (lambda trial: 0.5, {"end": "complete", "value": 0.5}),
        (lambda trial: "0.5", {"end": "complete", "value": 0.5}),
        (raises(optuna.TrialPruned()), {"end": "pruned"}),
        (raises(KeyError("a")), {"end": "failed", "reason": "KeyError: 'a'"}),
        (lambda trial: None, {"end": "failed", "reason": "the objective returned None, and not a number"}),
        (
            lambda trial: (1, 2),
            {"end": "failed", "reason": "the objective returned (1, 2), and not a number"},
        ),
        (lambda trial: float("nan"), {"end": "failed", "reason": "the objective returned nan"}),
    ],
)
def test_how_an_attempt_ends(objective, says, capfd):
    assert attempt(objective, None) == says


def test_an_exit_is_not_caught():
    with pytest.raises(SystemExit):
        attempt(raises(SystemExit(75)), None)


def test_neither_optuna_nor_tensorflow_is_imported_for_it():
    heavy = "{'optuna', 'tensorflow', 'numpy'}"
    code = f"import sys, colonnade.sweeps.slots.worker; print({heavy} & set(sys.modules))"
    assert run([sys.executable, "-c", code], cwd=ROOT).stdout.strip() == "set()"
