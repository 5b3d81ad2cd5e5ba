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


def test_too_few_cards_are_refused(contender):
    """And not measured as if they were as many."""
    with pytest.raises(SystemExit, match="TensorFlow can use 8 cards here, not 9"):
        contender.mirrored(contender.tiny, 9, 4, 16, 0.1)


@pytest.mark.parametrize("name", ["colonnade", "mirrored"])
def test_both_contenders_give_their_figures(contender, name):
    figures = contender.CONTENDERS[name](contender.tiny, 2, 4, 16, 0.1)
    assert set(figures) == {"first", "step", "images"}
    assert figures["images"] == pytest.approx(8 / figures["step"])
    assert figures["first"] > figures["step"] > 0


def test_figures_come_out_of_a_process_of_its_own(main, monkeypatch, capfd):
    """Among what its library prints at the end."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent / "children"))
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    arguments = ("colonnade", "tiny", "2", "4", "16", "0.1")
    contender = main.Contender("colonnade", FOLDER / "contender.py", arguments, cards=True)
    assert set(contender.run()) == {"first", "step", "images"}
    assert "NCCL INFO NCCL version" in capfd.readouterr().err


@pytest.fixture
def main(monkeypatch, tmp_path):
    spec = importlib.util.spec_from_file_location("cards_contest", FOLDER / "main.py")
    main = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(main)
    monkeypatch.setattr(main, "HERE", tmp_path)
    return main


def test_cards_that_are_hidden_are_not_counted(main, monkeypatch, capsys):
    asked = []

    def run(self):
        asked.append((int(self.arguments[2]), self.patience))
        return {"images": 1.0, "first": 1.0, "step": 1.0}

    monkeypatch.setattr(main.Contender, "run", run)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,2,0")
    main.main(rounds=1, seconds=1.0, batch=4, size=32, half=False, patience=45.0)
    assert set(asked) == {(1, 2700.0), (2, 2700.0), (3, 2700.0)}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    with pytest.raises(main.typer.Exit):
        main.main(rounds=1, seconds=1.0, batch=4, size=32, half=False, patience=45.0)
    assert "no card here that CUDA_VISIBLE_DEVICES shows" in capsys.readouterr().out


def test_what_was_measured_is_kept_when_a_contender_fails(main, monkeypatch, tmp_path):
    """On four cards, in the second round."""
    seen = []

    def run(self):
        seen.append(self.arguments[2])
        if seen.count("4") == 3:
            raise RuntimeError("mirrored failed: out of memory")
        return {"images": 1.0, "first": 1.0, "step": 1.0}

    monkeypatch.setattr(main.Contender, "run", run)
    with pytest.raises(RuntimeError, match="out of memory"):
        main.main(rounds=2, seconds=1.0, batch=4, size=32, half=False, patience=60.0)
    results = json.loads((tmp_path / "results.json").read_text())
    assert {cards: [len(runs) for runs in rounds.values()] for cards, rounds in results.items()} == {
        "1": [2, 2],
        "2": [2, 2],
        "4": [1, 1],
    }


def test_the_contest_of_all_cards_is_summed_up(main, monkeypatch, tmp_path, capsys):
    """With processes that say what they are told: ours is a quarter faster, and loses a tenth on eight."""
    asked = []

    def run(self):
        asked.append(self.arguments)
        cards, faster = int(self.arguments[2]), 1.25 if self.name == "colonnade" else 1.0
        return {"images": 100.0 * cards * faster * (0.9 if cards == 8 else 1.0), "first": 30.0, "step": 0.1}

    monkeypatch.setattr(main.Contender, "run", run)
    main.main(rounds=2, seconds=1.0, batch=4, size=32, half=True, patience=60.0)
    assert {arguments[2] for arguments in asked} == {"1", "2", "4", "8"}
    assert all(arguments[1] == "resnet50" and arguments[-1] == "--half" for arguments in asked)
    results = json.loads((tmp_path / "results_half.json").read_text())
    assert {cards: len(rounds["mirrored"]) for cards, rounds in results.items()} == dict.fromkeys("1248", 2)
    last = capsys.readouterr().out.strip().splitlines()[-1]
    cells = [cell.strip() for cell in last.strip("|").split("|")]
    assert cells == ["8", "900", "720", "1.25 (1.25 to 1.25)", "90%", "30 against 30"]
