"""The self-test passes here, and fails when something is broken on purpose: one test per way to break it."""

import getpass
import json
import os
import platform
import re
import signal
import sys
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import tensorflow as tf
from families import kept

from colonnade.describe.topology import Topology
from colonnade.hardware import collective, limit, watchdog
from colonnade.hardware import devices as hardware
from colonnade.hardware.cards import Card, Machine, Process
from colonnade.run.batch.split import Arguments, sizes
from colonnade.run.move.reduce import reduce, spread
from colonnade.run.parallel import parallel
from colonnade.run.selftest import equivalence, movement, selftest
from colonnade.run.selftest import report as reports
from colonnade.run.selftest.check import Check, Result, Verdict
from colonnade.run.step import objective
from colonnade.run.sync import lockstep
from colonnade.run.trace.traced import Traced
from colonnade.run.variables import homes
from colonnade.show.selftest import report

DEVICES = tuple(f"/device:CPU:{i}" for i in range(3))
CHECKS = {check.name: check for check in selftest.CHECKS}
GIB = 2**30


@pytest.fixture(scope="module")
def results():
    return {result.check: result for result in selftest.examine(DEVICES)}


def outcome(name):
    (result,) = selftest.examine(DEVICES, [CHECKS[name]])
    return result


def fails(name):
    result = outcome(name)
    assert result.state == "failed", result
    return f"{result.found} {result.words}".strip()


def test_passes_on_virtual_devices(results):
    absent = {"placed adds and NCCL", "memory limit and NVML"}
    assert {name for name, result in results.items() if result.state == "not applicable"} == absent
    assert [result for result in results.values() if result.state == "failed"] == []
    assert all(result.compares and result.tolerance and result.found for result in results.values())
    assert "cards" in results["placed adds and NCCL"].found
    assert "no card" in results["memory limit and NVML"].found
    assert "share one memory" in results["copies"].found


@pytest.mark.parametrize("count", [1, 2])
def test_few_devices_will_do(count):
    cheap = ("set-up", "split", "gradients", "placed adds", "copies")
    results = {r.check: r.state for r in selftest.examine(DEVICES[:count], [CHECKS[name] for name in cheap])}
    assert results.pop("copies") == ("passed" if count > 1 else "not applicable")
    assert set(results.values()) == {"passed"}


def test_precision_of_products_is_put_back():
    before = tf.config.experimental.tensor_float_32_execution_enabled()
    seen = []

    def look(devices):
        seen.append(tf.config.experimental.tensor_float_32_execution_enabled())
        return Verdict(True, "")

    list(selftest.examine(DEVICES, [Check("look", "", "", look)]))
    assert seen == [False]
    assert tf.config.experimental.tensor_float_32_execution_enabled() == before


def test_devices_that_are_started_are_taken():
    assert selftest.start(3) == DEVICES
    with pytest.raises(ValueError, match="devices=99"):
        selftest.start(99)


@pytest.mark.parametrize(
    ("cards", "asked"),
    [
        (0, {"virtual": 4}),
        (1, {"virtual": 2, "growth": True}),
        (4, {"devices": None, "growth": True}),
    ],
)
def test_what_is_set_up(monkeypatch, cards, asked):
    said = []
    monkeypatch.setattr(hardware, "started", lambda: False)
    monkeypatch.setattr(hardware, "visible_cards", lambda: ("a card",) * cards)
    monkeypatch.setattr(hardware, "setup", lambda **settings: said.append(settings))
    selftest.start()
    assert said == [asked]


# Broken on purpose.


def test_set_up_fails_for_a_device_that_is_not_there():
    (result,) = selftest.examine((*DEVICES, "/device:CPU:99"), [CHECKS["set-up"]])
    assert result.state == "failed"
    assert "CPU:99" in result.words


def test_set_up_fails_for_two_names_of_one_device():
    (result,) = selftest.examine(("/device:CPU:1", "/device:CPU:1"), [CHECKS["set-up"]])
    assert result.state == "failed"


def test_set_up_fails_if_settings_may_change_later(monkeypatch):
    monkeypatch.setattr(hardware, "setup", lambda **settings: DEVICES)
    assert "not refused" in fails("set-up")


def test_split_fails_for_slices_in_another_order(monkeypatch):
    parts = Arguments.parts
    monkeypatch.setattr(Arguments, "parts", lambda self, counts: parts(self, counts)[::-1])
    fails("split")
    fails("int32 and string inputs")


def test_split_fails_for_other_sizes(monkeypatch):
    def last_is_larger(total, parts):
        return sizes(total, parts)[::-1]

    monkeypatch.setattr(parallel, "sizes", last_is_larger)
    assert "wrong for" in fails("split")


def without_gradient_of(replica):
    on = Traced.on

    def broken(self, device, components, variables=None, *, replica=0):
        leaves = on(self, device, components, variables, replica=replica)
        return [tf.stop_gradient(leaf) for leaf in leaves] if replica == lost else leaves

    lost = replica
    return broken


def test_gradients_fail_if_one_replica_is_lost(monkeypatch):
    monkeypatch.setattr(Traced, "on", without_gradient_of(2))
    assert "gradient" in fails("gradients")


def test_placement_fails_if_all_runs_on_one_device(monkeypatch):
    on = Traced.on

    def broken(self, device, components, variables=None, *, replica=0):
        return on(self, DEVICES[0], components, variables, replica=replica)

    monkeypatch.setattr(Traced, "on", broken)
    assert "ops ran elsewhere" in fails("placement")


TRAININGS = [
    *(f"variables: {mode}" for mode in homes.MODES),
    "mixed precision",
    "int32 and string inputs",
]


def lost(gradient):
    if gradient is None or isinstance(gradient, tf.IndexedSlices):
        return gradient and tf.IndexedSlices(0 * gradient.values, gradient.indices, gradient.dense_shape)
    return tf.zeros_like(gradient)


@pytest.mark.parametrize("name", kept(TRAININGS, "variables: mirrored", "int32 and string inputs"))
def test_trainings_fail_if_a_replicas_gradient_is_dropped(monkeypatch, name):
    def broken(gradients, devices, order, **options):
        dropped = [*gradients[:-1], [lost(gradient) for gradient in gradients[-1]]]
        return reduce(dropped, devices, order, **options)

    monkeypatch.setattr(lockstep, "reduce", broken)
    assert "largest difference" in fails(name)


@pytest.mark.parametrize("name", kept(TRAININGS, "variables: partitioned", "mixed precision"))
def test_trainings_fail_for_the_mean_over_slices(monkeypatch, name):
    """The classic mistake: slices of different sizes counted alike."""

    def broken(batch, counts):
        each = [tf.constant(1.0 / (len(counts) * count), tf.float64) for count in counts]
        return [part.prefixed(factor) for factor, part in zip(each, batch.parts(counts), strict=True)]

    monkeypatch.setattr(lockstep, "with_factor", broken)
    fails(name)


def test_mirrored_fails_if_a_copy_gets_another_gradient(monkeypatch):
    def broken(values, devices, order):
        held = spread(values, devices, order)
        return [*held[:-1], [lost(value) for value in held[-1]]]

    monkeypatch.setattr(lockstep, "spread", broken)
    fails("variables: mirrored")
    assert outcome("variables: shared").state == "passed"


def test_partitioned_fails_if_the_result_stays_with_the_owners(monkeypatch):
    monkeypatch.setattr(homes.Residence, "leave", lambda self: None)
    fails("variables: partitioned")


def test_mixed_precision_fails_if_the_loss_is_not_scaled(monkeypatch):
    total = objective.Objective._total

    def broken(self, result, factor, rows):
        share, _ = total(self, result, factor, rows)
        return share, share.loss

    monkeypatch.setattr(objective.Objective, "_total", broken)
    assert "float16" in fails("mixed precision")


def test_mixed_precision_fails_if_nothing_is_in_half_precision(monkeypatch):
    network = equivalence.network
    monkeypatch.setattr(equivalence, "network", lambda dtype: network("float32"))
    assert "AssertionError" in fails("mixed precision")


def test_placed_adds_fail_for_a_wrong_sum(monkeypatch):
    def broken(gradients, devices, order, **options):
        return reduce(gradients, devices, order[:-1], **options)

    monkeypatch.setattr(movement, "reduce", broken)
    assert "star" in fails("placed adds")


def test_copies_fail_for_one_bit_between_one_pair(monkeypatch):
    def broken(values, devices, order):
        held = spread(values, devices, order)
        if devices == [DEVICES[2], DEVICES[1]]:
            bits = tf.bitcast(held[1][0], tf.int32)
            flip = tf.one_hot(1000, tf.size(bits), on_value=2**12, dtype=tf.int32)
            held[1] = [tf.bitcast(tf.bitwise.bitwise_xor(bits, flip), tf.float32)]
        return held

    monkeypatch.setattr(movement, "spread", broken)
    assert fails("copies").endswith("did not arrive: CPU:2 to CPU:1 (other bytes)")


def test_copies_fail_if_another_device_reads_them(monkeypatch):
    """A result is brought to the caller's device, so it would tell nothing; the placed graph does."""
    monkeypatch.setattr(hardware, "names", lambda: (*DEVICES, "/device:CPU:99"))
    (result,) = selftest.examine((DEVICES[1], "/device:CPU:99"), [CHECKS["copies"]])
    assert result.state == "failed"
    assert "CPU:1 to CPU:99 (read on CPU:0)" in result.found


def test_bandwidth_is_measured_between_cards_and_put_beside_the_link(monkeypatch):
    monkeypatch.setattr(hardware, "are_cards", lambda devices: True)
    monkeypatch.setattr(hardware, "topology", lambda: Topology.groups([[0, 1], [2]], near="PIX"))
    monkeypatch.setattr(movement.sending, "LARGE", 2**12)
    result = outcome("copies")
    figures = result.figures["bandwidth"]
    assert len(figures) == 6
    assert all(figure["GB/s"] >= 0 for figure in figures.values())
    assert figures["CPU:1 to CPU:0"] == {**figures["CPU:1 to CPU:0"], "link": "PIX", "published GB/s": 12.0}
    assert figures["CPU:2 to CPU:0"]["link"] == "SYS, no peer access"
    # The parts of one card have an unlimited link, and JSON has no word for that.
    monkeypatch.setattr(hardware, "topology", lambda: Topology.uniform(3))
    assert json.dumps(reports.bundle(DEVICES, [outcome("copies")]), allow_nan=False)


# Placed adds against a collective: the code that cards run, with TensorFlow's own ring in NCCL's place.


@pytest.fixture(scope="module")
def ring():
    hidden = {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "2"}
    answer = watchdog.ask(collective.__name__, "3", seconds=120, environment=hidden)
    assert answer.trouble == ""
    return answer.said


@pytest.mark.long
def test_placed_adds_equal_a_collective(ring):
    verdict = movement.judge_collective(DEVICES, ring, "2.21.5")
    assert verdict.passed
    assert verdict.figures["version"] == "2.21.5"
    assert [each["size"] for each in ring] == list(collective.SIZES)


@pytest.mark.long
def test_placed_adds_and_the_collective_fail(ring, monkeypatch):
    other = [{**each, "sums": [*each["sums"][:-1], 1]} for each in ring]
    assert "different sums of 1000, 4000000 numbers" in movement.judge_collective(DEVICES, other, "2").found
    assert "did not go through" in movement.judge_collective(DEVICES, ring, "").found
    for few in ([], ring[:1], ring[::-1]):
        assert movement.judge_collective(DEVICES, few, "2").passed is False

    def broken(gradients, devices, order):
        return reduce(gradients[:-1], devices[:-1], ())

    monkeypatch.setattr(movement, "reduce", broken)
    assert movement.judge_collective(DEVICES, ring, "2").passed is False


def test_a_collective_is_asked_for_on_cards(monkeypatch, ring):
    lines = ("NCCL version 2.21.5+cuda12.5", "[]")
    monkeypatch.setattr(collective, "ask", lambda *_, **__: watchdog.Answer(ring, printed=lines))
    assert collective.ask_cards(3, 1)[1] == "2.21.5+cuda12.5"
    monkeypatch.setattr(hardware, "are_cards", lambda devices: True)
    monkeypatch.setattr(hardware, "visible_cards", lambda: ("a card",) * 3)
    result = outcome("placed adds and NCCL")
    assert (result.state, result.figures["version"]) == ("passed", "2.21.5+cuda12.5")
    monkeypatch.setattr(collective, "ask", lambda *_, **__: watchdog.Answer(ring))
    fails("placed adds and NCCL")
    trouble = watchdog.Answer(trouble="exit code 1", words="no such card", printed=lines)
    monkeypatch.setattr(collective, "ask", lambda *_, **__: trouble)
    assert fails("placed adds and NCCL") == "exit code 1 no such card"


# The watchdog.


@pytest.fixture
def program(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))

    def write(code):
        (tmp_path / "asked.py").write_text(code)
        return "asked"

    return write


def test_the_last_line_is_the_answer(program):
    answer = watchdog.ask(
        program("import sys; print('notes'); print('[1, \"' + sys.argv[1] + '\"]')"), "b", seconds=20
    )
    assert (answer.said, answer.trouble, answer.printed[0]) == ([1, "b"], "", "notes")


@pytest.mark.parametrize(
    ("code", "trouble"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "died of SIGSEGV"),
        ("raise RuntimeError('spoilt')", "exit code 1"),
        ("print('no answer')", "ended without an answer"),
        ("", "ended without an answer"),
    ],
)
def test_trouble_is_told(program, code, trouble):
    answer = watchdog.ask(program(code), seconds=20)
    assert answer.trouble == trouble
    assert answer.words == ("RuntimeError: spoilt" if "raise" in code else "")


HANGS = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open(sys.argv[1], "w").write(f"{os.getpid()} {child.pid}")
time.sleep(600)
"""


def test_what_hangs_is_ended_with_all_it_started(program, tmp_path):
    answer = watchdog.ask(program(HANGS), str(tmp_path / "pids"), seconds=3)
    assert answer.trouble == "no answer within 3 s; it was ended"
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    deadline = time.monotonic() + 10
    while any(_runs(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(_runs(pid) for pid in pids)


def _runs(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_an_orphan_ends_itself(program):
    from fresh import run

    command = [sys.executable, "-m", "colonnade.hardware.watchdog", "0.5"]
    done = run([*command, program("import threading; threading.Event().wait()")])
    assert done.returncode == -signal.SIGALRM


# The memory limit.

CARD = Card(0, "GPU-1", "00000000:01:00.0", "a card", 16 * GIB, free=15 * GIB)


@pytest.mark.parametrize(
    ("used", "refused", "holds"),
    [
        (1400, True, True),
        (1024, True, True),
        (1400, False, False),  # more was granted
        (14000, True, False),  # all of the card was taken
        (500, True, False),  # less than was allocated: another card was limited
    ],
)
def test_whether_a_limit_holds(used, refused, holds):
    assert limit.Measured(1024, used, refused).holds == holds


def test_a_limit_that_shows_when_it_is_lost():
    assert limit.limit_for(CARD) == 1024
    assert limit.limit_for(replace(CARD, memory=4 * GIB)) == 512
    assert limit.limit_for(replace(CARD, free=GIB)) == 512


def test_what_a_process_takes_of_a_card():
    own = replace(CARD, free=9 * GIB, processes=(Process(7, None, 2 * GIB), Process(8, None, 4 * GIB)))
    topology = None
    assert limit.used(Machine((own,), topology), "GPU-1", 8, before=15 * GIB) == 4 * GIB
    # NVML does not list processes of another container.
    assert limit.used(Machine((own,), topology), "GPU-1", 9, before=15 * GIB) == 6 * GIB


@pytest.mark.parametrize(
    ("refused", "free_before", "taken", "state"),
    [(True, 15, 1300, "passed"), (False, 15, 1300, "failed"), (True, 15, 13000, "failed")],
)
def test_the_memory_limit_is_measured(monkeypatch, refused, free_before, taken, state):
    """The program for cards, with a card, its driver and its allocator faked around it."""
    held, told = [], {}

    def allocate(shape):
        if held and refused:
            raise tf.errors.ResourceExhaustedError(None, None, "no memory")
        held.append(shape)
        return SimpleNamespace(shape=SimpleNamespace(rank=1))

    def machine():
        free = free_before * GIB - (taken * limit.MIB if held else 0)
        return Machine((replace(CARD, free=free),), None)

    def set_up(**settings):
        told.update(settings)
        return ("/device:CPU:0",)

    monkeypatch.setattr(hardware, "visible_cards", lambda: (CARD,))
    monkeypatch.setattr(hardware, "are_cards", lambda devices: True)
    monkeypatch.setattr(limit, "detect", machine)
    monkeypatch.setattr(hardware, "setup", set_up)
    monkeypatch.setattr(limit.tf, "zeros", allocate)
    measured = limit.measure(1024)
    assert told == {"devices": 1, "memory": 1024, "growth": False}
    said = {"limit": measured.limit, "used": measured.used, "refused": measured.refused}
    monkeypatch.setattr(movement, "ask", lambda *_, **__: watchdog.Answer(said))
    assert outcome("memory limit and NVML").state == state


def test_the_memory_limit_without_an_answer(monkeypatch):
    monkeypatch.setattr(hardware, "are_cards", lambda devices: True)
    monkeypatch.setattr(hardware, "visible_cards", lambda: (CARD,))
    monkeypatch.setattr(movement, "ask", lambda *_, **__: watchdog.Answer(trouble="died of SIGSEGV"))
    assert fails("memory limit and NVML") == "died of SIGSEGV"
    for other in (replace(CARD, mig=True), replace(CARD, free=GIB // 8)):
        monkeypatch.setattr(hardware, "visible_cards", lambda other=other: (other,))
        assert outcome("memory limit and NVML").state == "not applicable"


# The bundle and the table.


def test_an_error_is_a_failure_and_says_where():
    def broken(devices):
        return reduce([[tf.ones(2)]], devices, ())

    (result,) = selftest.examine(DEVICES, [Check("broken", "a", "b", broken)])
    assert result.state == "failed"
    assert (result.found, bool(result.words)) == ("ValueError", True)
    assert any(re.fullmatch(r"run/reduce\.py:\d+ reduce", place) for place in result.figures["where"])


def private(text):
    """What must not be in a bundle: names of the user and the host, paths, UUIDs, processes."""
    names = {getpass.getuser(), platform.node()} - {"localhost"}
    found = [name for name in names if re.search(rf"\b{re.escape(name)}\b", text)]
    found += re.findall(r"(?<![\w/:.])/(?!device:)\w[^\s\"]*", text)
    found += re.findall(r"\b[0-9a-f]{8}-[0-9a-f]{4}-\S*", text)
    return found + re.findall(r"\bpid|process", text)


def test_the_bundle_tells_nothing_private(results):
    plain = reports.bundle(DEVICES, tuple(results.values()))
    assert private(json.dumps(plain, indent=1)) == []
    assert plain["versions"]["tensorflow"] == tf.__version__
    assert [result["check"] for result in plain["results"]] == list(CHECKS)
    assert len(plain["topology"]["links"]) == len(plain["devices"]) == 3


def test_the_bundle_of_a_failure_tells_nothing_private(monkeypatch):
    """Whatever an error says stays on the screen; there is no pattern that would find every secret."""
    secret = "the password of Dr. Ada, at host-17"

    def broken(devices):
        raise OSError(secret)

    (result,) = selftest.examine(DEVICES, [Check("a", "b", "c", broken)])
    assert result.words == secret
    monkeypatch.setattr(tf, "__version__", "2.21.0+ada.host17")
    plain = reports.bundle(DEVICES, [replace(result, figures={**result.figures, "GB/s": float("inf")})])
    (told,) = plain["results"]
    assert {name: told[name] for name in ("found", "state")} == {"found": "OSError", "state": "failed"}
    assert told["figures"] == {"where": result.figures["where"], "GB/s": "inf"}
    assert set(told) == set(reports.TOLD)
    assert plain["versions"]["tensorflow"] == "2.21.0"
    assert re.findall("Ada|host-?17|password", json.dumps(plain, allow_nan=False), re.I) == []


def test_the_bundle_holds_the_cards_without_their_uuids(monkeypatch):
    from colonnade.hardware.cards import detect
    from colonnade.hardware.recorded import recorded

    nvml = recorded("dgx1")
    machine = detect(nvml, nvml.owner)
    names = tuple(f"card {i}" for i in range(8))
    monkeypatch.setattr(reports, "detect", lambda: machine)
    monkeypatch.setattr(hardware, "topology", lambda: machine.topology)
    monkeypatch.setattr(hardware, "names", lambda: names)
    plain = reports.bundle(names[:4], [])
    text = json.dumps(plain)
    assert private(text) == []
    assert "ada" not in re.findall(r"\w+", text)
    assert [device["name"] for device in plain["topology"]["devices"]] == ["Tesla V100-SXM2-16GB"] * 4
    assert plain["versions"]["driver"] == machine.driver


def test_the_table():
    from rich.console import Console

    speed = {"GB/s": 11.5, "link": "PIX", "published GB/s": 12.0}
    results = [
        Result(
            "first", "one with two", "nothing", "passed", "all well", 0.1, {"bandwidth": {"a to b": speed}}
        ),
        Result("second", "two with one", "a little", "failed", "not well", 0.2, {}),
        Result("third", "one with one", "nothing", "not applicable", "no card", 0.0, {}),
    ]
    console = Console(width=100)
    with console.capture() as text:
        console.print(report(results))
    shown = text.get()
    assert re.search(r"passed +first +0\.1 s +all well", shown)
    assert "a to b: 11.5 GB/s (PIX: 12.0 published)" in shown
    assert re.search(r"FAILED +second .*\n +compares: two with one *\n +allowed: +a little", shown)
    assert "1 passed, 1 failed, 1 not applicable. Please report it" in shown


def test_every_number_that_a_collective_adds_is_exact():
    total = np.sum([np.abs(collective.numbers(i, 10_000)) for i in range(64)], axis=0)
    assert total.max() < 2**24
    assert np.array_equal(collective.numbers(1, 50), np.round(collective.numbers(1, 50)))
