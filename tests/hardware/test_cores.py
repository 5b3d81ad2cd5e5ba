import os

from colonnade.hardware.cores import cores


def test_a_process_may_use_the_cores_that_it_is_bound_to(monkeypatch):
    assert cores() >= 1
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 5, 7}, raising=False)
    assert cores() == 3
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert cores() == 1
