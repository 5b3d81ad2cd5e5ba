"""Bars of a fit, in a terminal and in a notebook."""

import io
import sys
from types import ModuleType, SimpleNamespace

import pytest
from lines import X, Y, linear
from rich.console import Console

from colonnade.run.record import bars
from colonnade.run.record.bars import NotebookBar, TerminalBar, bar_for


@pytest.fixture
def shown(monkeypatch):
    """What a notebook would show, line by line."""
    lines = []
    module = ModuleType("IPython.display")
    module.HTML = lambda text: text

    def display(text, display_id=None):
        if display_id is None:  # a line of its own
            return None
        assert display_id is True
        lines.append(text)
        return SimpleNamespace(update=lambda fresh: lines.__setitem__(-1, fresh))

    module.display = display
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    monkeypatch.setattr(bars, "PAUSE", 0.0)
    return lines


def test_which_bar_fits():
    assert isinstance(bar_for(Console(force_jupyter=True, file=io.StringIO()), 3), NotebookBar)
    assert isinstance(bar_for(Console(force_terminal=True, file=io.StringIO()), 3), TerminalBar)
    assert bar_for(Console(file=io.StringIO()), 3) is None


def test_a_notebook_has_one_line(shown):
    bar = NotebookBar(30)
    bar.start()
    assert 'value="0" max="30"' in shown[0]
    for _ in range(3):
        bar.advance(10, "loss <1>")
    bar.stop()
    assert len(shown) == 1
    assert "step 30/30" in shown[0]
    assert "loss &lt;1&gt;" in shown[0]


def test_steps_without_an_end(shown):
    bar = NotebookBar(None)
    bar.start()
    bar.advance(1200, "")
    assert "step 1,200<" in shown[0]
    assert "max=" not in shown[0]


def test_a_fit_in_a_notebook(shown, monkeypatch, capsys):
    monkeypatch.setattr("colonnade.run.record.progress.Console", lambda: Console(force_jupyter=True))
    _, trainer = linear(devices=2)
    trainer.fit((X, Y), batch_size=50, steps=20, log_every=10)
    (line,) = shown
    assert "step 20/20" in line
    assert "examples/s" in line
    assert capsys.readouterr().out == ""
