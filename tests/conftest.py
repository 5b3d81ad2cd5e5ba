"""Every test process has eight virtual CPU devices; what needs another number runs in `fresh`."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import pytest

import colonnade as cn


@pytest.fixture(scope="session", autouse=True)
def devices():
    """The eight devices."""
    return cn.setup(virtual=8)
