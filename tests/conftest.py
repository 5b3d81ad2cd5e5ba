"""Every test process has eight virtual CPU devices; what needs another number runs in `fresh`."""

import gc
import os
import signal
from collections import defaultdict

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# The tests are about virtual CPU devices, also on a machine with cards.
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"

import pytest

# A shell without job control starts what runs in the background deaf to Ctrl-C, and so all its children.
signal.signal(signal.SIGINT, signal.default_int_handler)

# A file is for one worker. These take longest, so they come first: else one worker waits for the other.
SLOW = (
    "test_cases.py",
    "test_docs.py",
    "test_saver_trouble.py",
    "test_aggregation.py",
    "test_gradient_sums.py",
)

# Rooms whose tests are about other things than the proof on the first batch: it would be made some hundred
# times there, of losses that other tests prove.
UNPROVED = (
    "asynchronous",
    "checkpoint",
    "data",
    "engine",
    "machines",
    "pipeline",
    "step",
    "sync",
    "variables",
    "width",
)


def pytest_configure(config):
    """Before the tests are collected, because their modules make tensors."""
    if config.getoption("numprocesses", None) and "PYTEST_XDIST_WORKER" not in os.environ:
        return  # it hands tests out to workers, and runs none
    import colonnade as cn

    cn.setup(virtual=8)
    # TensorFlow and Keras are some hundred thousand objects that stay: looking for garbage among them took
    # up to a quarter of the time of a test file.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


@pytest.fixture
def double():
    """Keras computes in float64 meanwhile, where what should be equal is."""
    from doubles import in_double

    with in_double():
        yield


@pytest.fixture(autouse=True)
def unproved(request, monkeypatch):
    if request.path.parent.name in UNPROVED:
        from colonnade.run.train import trainer

        monkeypatch.setattr(trainer.Trainer, "_to_examine", lambda *looks: None)


@pytest.hookimpl(tryfirst=True)  # before those that are long are left out
def pytest_collection_modifyitems(items):
    families = defaultdict(list)
    for item in items:
        if item.get_closest_marker("sampled") and not item.get_closest_marker("long"):
            families[item.nodeid.partition("[")[0]].append(item)
    for members in families.values():
        (every,) = members[0].get_closest_marker("sampled").args
        for number, item in enumerate(members):
            if number % every:
                item.add_marker(pytest.mark.long)
    items.sort(key=lambda item: SLOW.index(item.path.name) if item.path.name in SLOW else len(SLOW))
