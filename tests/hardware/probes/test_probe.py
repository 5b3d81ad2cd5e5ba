"""What TensorFlow says of itself and of the cards that it can use."""

import pytest

from colonnade.hardware.probes import probe as probing
from colonnade.hardware.probes.probe import Copy, TensorFlow, probe, read
from colonnade.hardware.probes.watchdog import Answer


def test_copies_are_measured_where_there_are_cards(monkeypatch):
    assert (
        probing.measured(TensorFlow("2.21.0", cards=1)).unmeasured
        == "TensorFlow can use fewer than two cards here"
    )
    several = TensorFlow("2.21.0", cards=2)
    plain = {"source": 0, "target": 1, "arrived": True, "bandwidth": 1e9}
    monkeypatch.setattr(probing, "ask", lambda *_, **__: Answer([plain]))
    assert probing.measured(several).copies == (Copy(0, 1, True, 1e9),)
    monkeypatch.setattr(probing, "ask", lambda *_, **__: Answer(trouble="exit code 1", words="no memory"))
    assert probing.measured(several).unmeasured == "exit code 1: no memory"


def test_what_tensorflow_said():
    errors = "2026 I x.cc:9] This binary uses AVX2\n2026 W y.cc:3] Cannot dlopen some GPU libraries.\n"
    assert read(0, 'noise\n["2.21.0", true, "12.5.1", 0, true, []]\n', errors).log == (
        "Cannot dlopen some GPU libraries.",
    )
    assert read(1, "", "Traceback\nModuleNotFoundError: No module named 'tensorflow'\n") == TensorFlow(
        log=("ModuleNotFoundError: No module named 'tensorflow'",)
    )


@pytest.mark.long
def test_asking_tensorflow():
    import tensorflow as tf

    found = probe()
    assert found.version == tf.__version__
    assert found.built_with_cuda == tf.test.is_built_with_cuda()
