import keras
import numpy as np

from colonnade.run.keras_train.step_state import StepState
from colonnade.run.machines.peers import ALONE
from colonnade.run.variables.saved_state import Item, SavedState


class OfKernel:
    """A step that knows of one variable."""

    devices = ("CPU:0",)

    def __init__(self, model):
        self.kernel = model.layers[0].kernel.value

    def state(self):
        return SavedState({"parameters/kernel": Item(self.kernel, self.kernel)}, {}, frozenset())


def test_every_variable_of_model_and_metrics_is_kept_once():
    model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1), keras.layers.BatchNormalization()])
    model.compile("sgd", "mse", metrics=["mae"])
    model.evaluate(np.ones((4, 2)), np.ones((4, 1)), verbose=0)
    common = StepState(model, OfKernel(model), ALONE).state().common
    refs = [item.original.ref() for item in common.values()]
    everything = [*model.variables, *(v for metric in model.metrics for v in metric.variables)]
    assert len(refs) == len(set(refs))
    assert {v.value.ref() for v in everything} <= set(refs)
    assert sum(name.startswith("metrics/") for name in common) == 4
