"""Memory that was in use at most."""

import numpy as np
import pytest
import tensorflow as tf

from colonnade.hardware.peaks import device_peaks, process_peak


@pytest.mark.long
def test_the_process_counts_what_it_holds():
    before = process_peak()
    held = np.ones([before // 8 + 2**24])  # more than ever before
    assert process_peak() > before
    assert process_peak() > held.nbytes


def test_cards_are_asked_and_cpu_devices_are_not(monkeypatch):
    asked = []

    def told(device):
        asked.append(device)
        return {"current": 1, "peak": 5}

    monkeypatch.setattr(tf.config.experimental, "get_memory_info", told)
    assert device_peaks(["/device:CPU:0", "/device:GPU:1"]) == {"/device:GPU:1": 5}
    assert asked == ["GPU:1"]
