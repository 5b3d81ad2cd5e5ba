import json
import os
import signal
import sys
from dataclasses import replace

import pytest
from fresh import COMMAND, run
from jobs import Job

import colonnade as cn
from colonnade.describe.topology import Topology
from colonnade.fleet import launch
from colonnade.fleet.lease import claims
from colonnade.fleet.supervise import Exit
from colonnade.hardware.cards import Instance, Process, detect
from colonnade.hardware.fake import FakeNvml
from colonnade.hardware.recorded import recorded


def machine(pids=None):
    """Four cards; 0 and 3 are linked, and so are 1 and 2; `pids` are on a card each."""
    held = {card: [Process(pid, None, 2**30)] for card, pid in (pids or {}).items()}
    nvml = FakeNvml(Topology.groups([[0, 3], [1, 2]]), processes=held)
    found = detect(nvml, owner=str)
    cards = [replace(card, uuid=f"GPU-{str(card.index) * 4}") for card in found.cards]
    return replace(found, cards=tuple(cards))


@pytest.fixture
def started(monkeypatch, tmp_path):
    """Four cards, and a list of what was started: the command, and its environment."""
    calls = []

    def supervise(command, environment, keep):
        calls.append((tuple(command), environment))
        return Exit(0, interrupted=False)

    monkeypatch.setenv("COLONNADE_LEASES", str(tmp_path / "leases"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(launch, "supervise", supervise)
    monkeypatch.setattr(launch, "detect", lambda: machine())
    return calls


def test_a_program_finds_its_cards(started, monkeypatch):
    monkeypatch.setenv("COLONNADE_VIRTUAL", "8")  # from outside, and not what was leased
    assert launch.run(["true"], cards=2, memory="0.5") == 0
    ((command, inside),) = started
    assert command == ("true",)
    assert inside["CUDA_VISIBLE_DEVICES"] == "GPU-0000,GPU-3333"
    assert inside["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert inside["COLONNADE_MEMORY"] == "0.5"
    assert "COLONNADE_VIRTUAL" not in inside


def test_a_whole_card_has_no_limit(started):
    launch.run(["true"], memory="1")
    assert "COLONNADE_MEMORY" not in started[0][1]


def test_only_visible_cards_are_leased(started, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,2")
    launch.run(["true"], cards=2)
    assert started[0][1]["CUDA_VISIBLE_DEVICES"] == "GPU-2222,GPU-3333"
    with pytest.raises(cn.InvalidArgument, match="only 2"):
        launch.run(["true"], cards=3)


def test_cards_with_the_best_links_are_chosen(started):
    launch.run(["true"], cards=2)
    assert started[0][1]["CUDA_VISIBLE_DEVICES"] == "GPU-0000,GPU-3333"


def test_virtual_cards_hide_the_real_ones(started):
    launch.run(["true"], virtual=4, cards=3, memory="0.5")
    launch.run(["true"], virtual=4)
    inside = started[0][1]
    assert (inside["CUDA_VISIBLE_DEVICES"], inside["COLONNADE_VIRTUAL"]) == ("-1", "3")
    assert "COLONNADE_MEMORY" not in inside  # TensorFlow has no limit for CPU devices
    assert started[1][1]["COLONNADE_VIRTUAL"] == "4"


def test_cards_that_others_use_are_left_alone(started, monkeypatch, capsys):
    monkeypatch.setattr(launch, "detect", lambda: machine({0: os.getppid()}))
    launch.run(["true"])
    assert started[0][1]["CUDA_VISIBLE_DEVICES"] == "GPU-1111"
    assert launch.run(["true"], cards=4, timeout="0") == 124
    said = capsys.readouterr().err
    assert "waiting for 4 of 4 cards, next in line" in said
    assert "did not come free in time" in said
    launch.run(["true"], cards=4, timeout="0", share=True)
    assert len(started) == 2


def test_every_mig_instance_is_leased_to_one_program(started, monkeypatch):
    nvml = recorded("mig")
    monkeypatch.setattr(launch, "detect", lambda: detect(nvml))
    with launch.ask(launch._cards(1), 1) as first, launch.ask(launch._cards(1), 1) as second:
        assert (first.take(), second.take()) == (0, 0)
        assert launch.run(["true"]) == 0
        leased = [*first.claim.slots, *second.claim.slots, started[0][1]["CUDA_VISIBLE_DEVICES"]]
    assert leased == [part.uuid for part in detect(nvml).cards[0].instances]
    with pytest.raises(cn.InvalidArgument, match="not that many whole cards here, only 0"):
        launch.run(["true"], cards=2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", f"{leased[2]},{leased[1]}")
    assert launch._cards(1).slots == (leased[1], leased[2])


def test_mig_instances_that_others_use_are_left_alone(started, monkeypatch):
    stranger = (Process(os.getppid(), None, 2**30),)
    parts = [Instance("MIG-a", 1, 0, 2**33, stranger), Instance("MIG-b", 2, 0, 2**33)]

    def divided(**options):
        return lambda: detect(FakeNvml(Topology.uniform(1), instances={0: parts}, **options))

    monkeypatch.setattr(launch, "detect", divided())
    launch.run(["true"])
    assert started[0][1]["CUDA_VISIBLE_DEVICES"] == "MIG-b"
    # A process of the card that no instance lists may be on any of them.
    other = {0: [Process(os.getpid(), None, 2**30)]}
    monkeypatch.setattr(launch, "detect", divided(processes=other))
    assert launch.run(["true"], timeout="0") == 124


def test_a_display_server_and_the_server_of_mps_keep_nobody_waiting(started, monkeypatch):
    drawing = Process(os.getppid(), None, 2**28, computes=False)
    serving = Process(os.getpid(), None, 2**28)
    nvml = FakeNvml(Topology.uniform(1), processes={0: [drawing, serving]})
    monkeypatch.setattr(launch, "detect", lambda: detect(nvml))
    assert launch.run(["true"], timeout="0") == 124
    monkeypatch.setattr(launch, "is_mps_server", lambda pid: pid == os.getpid())
    assert launch.run(["true"], timeout="0") == 0


def test_whoever_computes_through_mps_has_the_card(started, monkeypatch):
    """Its server alone does not, nor does it hide those that it serves."""
    serving, served = Process(os.getpid(), None, 2**28), Process(os.getppid(), None, 2**28, through_mps=True)
    nvml = FakeNvml(Topology.uniform(1), processes={0: [serving, served]})
    monkeypatch.setattr(launch, "detect", lambda: detect(nvml))
    monkeypatch.setattr(launch, "is_mps_server", lambda pid: pid == os.getpid())
    assert launch.run(["true"], timeout="0") == 124
    assert launch.run(["true"], timeout="0", share=True) == 0


@pytest.mark.parametrize(
    ("settings", "argument", "says"),
    [
        ({"cards": 5}, "--cards", "only 4"),
        ({"cards": 0}, "--cards", "from 1 up"),
        ({"virtual": 0}, "--virtual", "from 1 up"),
        ({"virtual": 2, "cards": 3}, "--cards", "only 2"),
        ({"memory": "1.5"}, "--memory", "at most 1"),
        ({"memory": "0"}, "--memory", "above 0"),
        ({"memory": "-1"}, "--memory", "above 0"),
        ({"memory": "nan"}, "--memory", "above 0"),
        ({"memory": "half"}, "--memory", "share of a card"),
        ({"timeout": "soon"}, "--timeout", "time span"),
        ({"timeout": "-1s"}, "--timeout", "time span"),
        ({"timeout": ""}, "--timeout", "time span"),
        ({"retries": -1}, "--retries", "from 0 up"),
    ],
)
def test_what_cannot_work(started, settings, argument, says):
    with pytest.raises(cn.InvalidArgument, match=says) as caught:
        launch.run(["true"], **settings)
    assert [problem.argument for problem in caught.value.problems] == [argument]
    assert started == []


def test_all_that_is_wrong_comes_at_once(started):
    with pytest.raises(cn.InvalidArgument) as caught:
        launch.run(["no-such-program"], cards=5, memory="2", timeout="x", retries=-2)
    arguments = [problem.argument for problem in caught.value.problems]
    assert arguments == ["command", "--cards", "--memory", "--timeout", "--retries"]


def test_a_run_inside_a_run_does_not_wait_for_itself(tmp_path):
    inner = f"import subprocess; subprocess.run([{COMMAND!r}, 'run', '--virtual', '2', '--', 'true'])"
    code, _, errors = Job(tmp_path, inner).end()
    assert code == 0
    assert "would wait for its own end" in errors


@pytest.mark.parametrize(
    ("text", "value"), [("45", 45), ("90s", 90), ("1h30m", 5400), ("1.5m", 90), ("1d", 86400), ("0", 0)]
)
def test_time_spans(text, value):
    assert launch.seconds(text) == value


@pytest.mark.parametrize(
    ("codes", "interrupted", "retries", "starts", "code"),
    [
        ([75, 75, 0], False, 5, 3, 0),
        ([75, 75, 75], False, 1, 2, 75),
        ([75], False, 0, 1, 75),
        ([3], False, 5, 1, 3),
        ([75], True, 5, 1, 75),
    ],
)
def test_a_resumable_program_is_started_again(
    started, monkeypatch, codes, interrupted, retries, starts, code
):
    left = iter(codes)
    calls = []

    def supervise(*_):
        calls.append(len(claims()))
        return Exit(next(left), interrupted)

    monkeypatch.setattr(launch, "supervise", supervise)
    assert launch.run(["true"], retries=retries) == code
    assert calls == [1] * starts  # under the same lease
    assert claims() == ()


def test_ctrl_c_while_waiting(tmp_path):
    with Job(tmp_path, "print('up'); import time; time.sleep(60)").process as first:
        assert first.stdout.readline() == "up\n"
        second = Job(tmp_path, "", "--cards", "1")
        assert "next in line" in second.process.stderr.readline()
        second.process.send_signal(signal.SIGINT)
        assert second.end()[0] == 130
        first.send_signal(signal.SIGTERM)
    assert first.returncode == 143


@pytest.mark.long
def test_a_plain_setup_gets_what_was_leased(tmp_path):
    program = "import colonnade as cn; print(*cn.setup())"
    code, said, errors = Job(tmp_path, program, "--cards", "2").end()
    assert (code, said) == (0, ["/device:CPU:0", "/device:CPU:1"]), errors


def test_neither_run_nor_leases_loads_tensorflow(tmp_path):
    code = """
import sys
from colonnade.cli import app
for command in (["leases"], ["run", "--virtual", "1", "--", "true"]):
    try:
        app(command)
    except SystemExit as end:
        assert end.code == 0
print(sorted({"tensorflow", "keras"} & set(sys.modules)))
"""
    done = run([sys.executable, "-c", code], COLONNADE_LEASES=str(tmp_path / "leases"))
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


@pytest.mark.long
def test_two_people_start_at_the_same_moment(tmp_path):
    """Eight jobs at once on two cards, each of which notes when it had which."""
    note = tmp_path / "note"
    program = f"""
import json, os, time
start = time.monotonic()
time.sleep(0.05)
with open({str(note)!r}, "a") as file:
    print(json.dumps([start, time.monotonic()]), file=file)
"""
    jobs = [Job(tmp_path, program, "--cards", "1") for _ in range(8)]
    assert [job.end()[0] for job in jobs] == [0] * 8
    spans = [json.loads(line) for line in note.read_text().splitlines()]
    assert len(spans) == 8
    together = [sum(a <= start < b for a, b in spans) for start, _ in spans]
    assert max(together) <= 2
