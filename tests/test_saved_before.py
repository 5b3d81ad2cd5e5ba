"""Trainings and models that an older version saved: they load, with the values that they had.

`before/make.py` made them, and says with what.
"""

import json
import shutil

import keras
import numpy as np
import pytest
from before.make import WAYS, X, Y, trainer, weights
from fresh import ROOT

import colonnade as cn

BEFORE = ROOT / "tests" / "before"
EXPECTED = json.loads((BEFORE / "expected.json").read_text())


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", WAYS)
def test_a_training_that_an_older_version_saved_goes_on(tmp_path, name):
    shutil.copytree(BEFORE / name, tmp_path / name)
    model, training = trainer(name)
    saved = cn.Checkpoint(tmp_path / name, every=4)
    history = training.fit((X, Y), batch_size=6, steps=4, checkpoint=saved, progress=False)
    assert (history.resumed, history.losses) == (4, [])
    for value, expected in zip(weights(model), EXPECTED[name], strict=True):
        np.testing.assert_array_equal(np.float32(value), np.float32(expected))
    history = training.fit((X, Y), batch_size=6, steps=6, progress=False)
    assert np.isfinite(history.losses).all()
    assert len(history.losses) == 6


def test_a_model_with_layers_split_by_width_that_an_older_version_saved_loads():
    with cn.width.loading_on(2):
        model = keras.saving.load_model(BEFORE / "wide.keras")
    np.testing.assert_allclose(model(np.ones([2, 4], "float32")), EXPECTED["wide"], rtol=1e-6)
