"""The contest: players that fail or hang are reported, peers have their versions, models are the same."""

import json
import subprocess
import sys

import pytest
from fresh import ROOT, forked

FOLDER = ROOT / "benchmarks" / "throughput"
PATHS = f"import sys; sys.path[:0] = {[str(FOLDER.parent), str(FOLDER)]!r}\n"
ENVIRONMENTS = {name: ROOT / f".venv-{name}" / "bin" / "python" for name in ("torch", "jax")}


def said(code, *arguments):
    """What a process prints that has the modules of the contest, whose names are those of some tests."""
    done = subprocess.run([sys.executable, "-c", PATHS + code, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


PLAYER = """
import time
from turns import Turns, fastest, imported
kind = sys.argv[1]
if kind == "fails":
    raise SystemExit("no such device")
imported()
def slow():
    time.sleep(0.02)
def refused():
    raise ValueError
chosen = fastest({"slow": slow, "fast": lambda: time.sleep(0.001), "refused": refused}, (ValueError,))
turns = Turns(4, first=1.5, memory=10, setting=chosen)
turns.take(lambda: time.sleep(100 if kind == "hangs" else 0.004))
"""

CONTEST = """
import json
from pathlib import Path
from players import Entry, play
kinds = ("works", "fails", "hangs", "works too")
entries = [Entry(kind, Path(sys.executable), Path(sys.argv[1]), (kind,)) for kind in kinds]
print(json.dumps(play(entries, 2, 0.02, 3, lambda line: None)))
"""


def test_players_that_fail_or_hang_are_ended_and_the_others_go_on(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PATHS + PLAYER)
    measured, settings, lost = said(CONTEST, str(program))
    assert set(measured) == {"works", "works too"}
    assert lost == {"fails": "failed: no such device", "hangs": "hung: no answer within 3 s"}
    assert settings["works"] == "fast"
    first, second = measured["works"]
    assert (first["first"], first["memory"]) == (1.5, 10)
    assert set(second) == {"step"}  # what a process measures once is not counted twice
    assert 1 <= second["step"] < 5  # 4 steps in 4 ms or a little more


PEER = """
import json
from pathlib import Path
from peers import Peer, WrongPeer
folder, pins = Path(sys.argv[1]), Path(sys.argv[2])
answers = [Peer("torch", folder / "nowhere", pins).missing()]
for text in ("numpy==0.1", "no-such-package==1.0"):
    pins.write_text(text)
    try:
        answers.append(Peer("torch", folder, pins).missing())
    except WrongPeer as wrong:
        answers.append(str(wrong))
print(json.dumps(answers))
"""


def test_an_environment_of_another_version_is_one_clear_error(tmp_path):
    folder = tmp_path / ".venv-torch"
    (folder / "bin").mkdir(parents=True)
    python = folder / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    missing, version, other = said(PEER, str(folder), str(tmp_path / "pins.txt"))
    assert missing is True
    assert "(wanted: 0.1). Make it anew: rm -r .venv-torch && make bench-peers" in version
    assert "is not the environment of torch" in other
    assert "Make it anew" in other


CLAIMS = """
import json
from claims import claims
from results import MODELS, Results
rounds = lambda *steps: [{"step": step, "first": 1.0, "memory": 1.0} for step in steps]
held = {"colonnade": rounds(1.0, 2.0), "mirrored": rounds(1.4, 2.8), "session": rounds(0.9, 1.8)}
held |= {"single": rounds(1.2, 2.4), "torch": rounds(0.9, 1.8), "jax": rounds(9.0, 18.0)}
results = Results({f"{model} 2": held for model in MODELS})
print(json.dumps({claim.text: [claim.figure.median, claim.verdict] for claim in claims(results)}))
"""


def test_targets_are_judged_by_ratios_within_a_round():
    found = said(CLAIMS)
    assert found["2 devices against MirroredStrategy: cnn"] == [pytest.approx(1.4), "PASS"]
    mean = found["2 devices against MirroredStrategy: geometric mean"]
    assert mean == [pytest.approx(1.4), "FALLS SHORT"]
    # The fastest of all frameworks on one device is torch here.
    text = "2 devices against the fastest framework on one device: geometric mean of the six larger"
    assert found[text] == [pytest.approx(0.9), "FALLS SHORT"]
    slower = found["polynomial, time of a step against compat.v1 program"]
    assert slower == [pytest.approx(1 / 0.9), "FALLS SHORT"]
    assert "2 devices against TensorFlow, one device, all cores: polynomial" not in found


SIZES = """
import json
from contender import built
from models import MODELS
sizes = {name: sum(v.shape.num_elements() for v in built(model)[2]) for name, model in MODELS.items()}
print(json.dumps(sizes))
"""


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.skipif(
    not all(python.exists() for python in ENVIRONMENTS.values()),
    reason="no environments of torch and JAX: make bench-peers",
)
def test_models_of_torch_and_jax_are_those_of_keras_and_learn():
    """The same number of parameters, and a loss that falls on the batches that it has seen before."""
    sizes = json.loads(forked(["-c", PATHS + SIZES]).stdout.splitlines()[-1])
    for peer, python in ENVIRONMENTS.items():
        for model, size in sizes.items():
            command = [python, FOLDER / f"{peer}_contender.py", "check", model, "1"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=200)
            assert done.returncode == 0, done.stderr
            number, before, after = done.stdout.split()
            assert (peer, model, int(number)) == (peer, model, size)
            assert float(after) < float(before), (peer, model)
