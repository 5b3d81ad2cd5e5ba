"""The benchmark on cards runs, on a small model; its times mean nothing here."""

import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent.parent / "benchmarks" / "cards"


@pytest.fixture
def contender(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.setattr(sys, "argv", ["contender.py", "--copies"])  # there is no NCCL here
    import contender

    return contender


@pytest.mark.parametrize("name", ["colonnade", "mirrored"])
def test_both_contenders_give_their_figures(contender, name):
    figures = contender.CONTENDERS[name](contender.tiny, 2, 4, 16, 0.1)
    assert set(figures) == {"first", "step", "images"}
    assert figures["images"] == pytest.approx(8 / figures["step"])
    assert figures["first"] > figures["step"] > 0
