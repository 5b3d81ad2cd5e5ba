"""The benchmark on cards runs, on a small model; its times mean nothing here."""

import importlib.util
import json
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


def test_the_contest_of_all_cards_is_summed_up(monkeypatch, tmp_path, capsys):
    """With processes that say what they are told: ours is a quarter faster, and loses a tenth on eight."""
    spec = importlib.util.spec_from_file_location("cards_contest", FOLDER / "main.py")
    main = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(main)
    asked = []

    def run(self):
        asked.append(self.arguments)
        cards, faster = int(self.arguments[2]), 1.25 if self.name == "colonnade" else 1.0
        return {"images": 100.0 * cards * faster * (0.9 if cards == 8 else 1.0), "first": 30.0, "step": 0.1}

    monkeypatch.setattr(main.Contender, "run", run)
    monkeypatch.setattr(main, "HERE", tmp_path)
    main.main(rounds=2, seconds=1.0, batch=4, size=32, half=True)
    assert {arguments[2] for arguments in asked} == {"1", "2", "4", "8"}
    assert all(arguments[1] == "resnet50" and arguments[-1] == "--half" for arguments in asked)
    results = json.loads((tmp_path / "results.json").read_text())
    assert {cards: len(rounds["mirrored"]) for cards, rounds in results.items()} == dict.fromkeys("1248", 2)
    last = capsys.readouterr().out.strip().splitlines()[-1]
    cells = [cell.strip() for cell in last.strip("|").split("|")]
    assert cells == ["8", "900", "720", "1.25 (1.25 to 1.25)", "90%", "30 against 30"]
