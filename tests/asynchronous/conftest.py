"""Whatever a test of asynchronous training does, it leaves no thread behind."""

import threading

import pytest


@pytest.fixture(autouse=True)
def no_thread_is_left():
    yield
    assert [t.name for t in threading.enumerate() if t.name.startswith("colonnade")] == []
