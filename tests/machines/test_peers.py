"""Several machines against one with as many devices: the same losses, parameters, metrics, the same NaN.

What is in float64 differs by the order of additions only: relative differences of a few 1e-16 in a step, that
grow over the few steps of a case to well below 1e-10. Float32 is held to 1e-5 for the same reason.
"""

import secrets
from contextlib import contextmanager
from pathlib import Path

import machine_cases
import machine_fits
import numpy as np
import pytest
from together import on_machines

from colonnade.errors import RESUMABLE
from colonnade.hardware.clusters.meeting import IN_STEPS, OTHERWISE
from colonnade.hardware.clusters.whereabouts import DATA
from colonnade.run.machines.call_pace import CallPace
from colonnade.run.machines.peers import Peers

TOLERANCE = {"scaled": 1e-5, "keras_fit": 1e-5, "keras_gathered": 1e-5}
# What machines send each other has 8 bits of a fraction, or is off by half a 127th of its block's largest.
# Parameters move by up to 0.4 between the four joins; the outer optimizer takes 0.7 of that, and momentum.
TOLERANCE |= {"diloco_bfloat16": 4 * 0.4 / 2**8, "diloco_int8": 4 * 0.4 / 127}


# A case takes a second or two of each of three processes: these are in every run.
SHORT = (
    "mirrored",
    "measured",
    "partitioned",
    "few_rows",
    "weighted",
    "sparse",
    "nan_skip",
    "synchronised_norm",
    "keras_fit",
    "sharded",
    "diloco_int8",
)
LONG = [name for name in machine_cases.CASES if name not in (*SHORT, "nan_stop")]
LONG_SAVES = ("diloco_saved", "keras_saved_whole")


@pytest.fixture(scope="module")
def two_by_two():
    """Two machines with two devices each, and what goes wrong on them."""
    wrong = [name for name in machine_cases.WRONG if name not in LONG_SAVES]
    return on_machines([*SHORT, "nan_stop", *wrong], [2, 2], SPOILT=secrets.token_hex(4))


@pytest.fixture(scope="module")
def of_long_cases():
    return on_machines([*LONG, *LONG_SAVES], [2, 2], SPOILT=secrets.token_hex(4))


@pytest.mark.parametrize("name", SHORT)
def test_two_machines_with_two_devices_are_one_with_four(two_by_two, name):
    of_one = machine_cases.CASES[name](4)
    for machine in two_by_two:
        assert_equal(machine[name], of_one, TOLERANCE.get(name, 1e-10))


@pytest.mark.long
@pytest.mark.parametrize("name", LONG)
def test_two_machines_are_one_in_all_other_cases(of_long_cases, name):
    of_one = machine_cases.CASES[name](4)
    for machine in of_long_cases:
        assert_equal(machine[name], of_one, TOLERANCE.get(name, 1e-10))


@pytest.mark.long
@pytest.mark.parametrize("name", ["plain", "few_rows", "sparse", "local_norm"])
def test_four_machines_of_different_sizes_are_one(four, name):
    of_one = machine_cases.CASES[name](5)
    for machine in four:
        assert_equal(machine[name], of_one, TOLERANCE.get(name, 1e-10))


@pytest.fixture(scope="module")
def four():
    return on_machines(["plain", "few_rows", "sparse", "local_norm"], [1, 2, 1, 1])


def test_four_machines_with_one_device_each_are_one_with_four():
    """The last batches have fewer rows than there are machines."""
    of_one = machine_cases.few_rows(4)
    for machine in on_machines(["few_rows"], [1, 1, 1, 1]):
        assert_equal(machine["few_rows"], of_one, 1e-10)


def assert_equal(one, other, tolerance, path=""):
    """Numbers to a tolerance, relative to their size or to 1; everything else exactly."""
    assert type(one) is type(other) or {type(one), type(other)} <= {list, tuple}, path
    if isinstance(one, dict):
        assert one.keys() == other.keys(), path
        for key in one:
            assert_equal(one[key], other[key], tolerance, f"{path}/{key}")
    elif isinstance(one, list | tuple):
        assert len(one) == len(other), path
        for i, (a, b) in enumerate(zip(one, other, strict=True)):
            assert_equal(a, b, tolerance, f"{path}/{i}")
    elif isinstance(one, float):
        if path.startswith(("/losses", "/records")):  # a history keeps losses as float32
            tolerance = max(tolerance, 1e-6)
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance, err_msg=path)
    else:
        assert one == other, path


def test_all_machines_stop_at_a_nan_and_name_its_device(two_by_two):
    one = machine_cases.nan_stop(4)
    for machine in two_by_two:
        told = machine["nan_stop"]
        assert told.pop("device") == "m1 CPU:1"
        assert_equal(told, {k: v for k, v in one.items() if k != "device"}, 1e-10)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("other_model", ["model=", "is so on m1", "on m0", "Run the same program"]),
        ("other_values", ["bias", "has other values on m1", "seed with"]),
        ("other_order", ["data='batches of 30 and 30 rows'", "in the same order", "Sort the files"]),
        ("other_constant", ["graph='ops ", "is so on m1", "on m0", "Run the same program"]),
        ("other_frozen_layer", ["bias", "has other values on m1", "seed with"]),
        ("other_way_round", ["graph='ops ", "is so on m1", "on m0", "Run the same program"]),
        ("other_steps", ["steps='5'", "is so on m1, and 4 on m0"]),
    ],
)
def test_what_differs_is_told_on_every_machine(two_by_two, name, words):
    for machine in two_by_two:
        for word in words:
            assert word in machine[name]


def test_batches_that_part_at_the_border_of_a_call_are_told(two_by_two):
    """Each machine would wait in another graph, where nobody meets it."""
    for machine in two_by_two:
        words, step = machine["other_size"]
        assert "batches of 16 and 4 rows" in words
        assert step == 6
        epochs, fit, by_hand = machine["other_batch_of_keras"]
        assert "epochs='2': is so on m1, and 1 on m0" in epochs
        assert "batches of 16 and 4 rows" in fit
        assert "batches of 48 and 36 rows" in by_hand


def test_a_spoilt_machine_is_named_and_nothing_is_saved(two_by_two):
    for machine in two_by_two:
        words, steps, unsaved = machine["spoilt"]
        assert "the checkpoint of step 2" in words
        assert "has other values on m1 than on the other machines" in words
        assert steps == []
        assert "the end of the fit" in unsaved
        assert "has other values on m1 than on the other machines" in unsaved


class FakeMeeting:
    """Notes the calls that it is told of."""

    def __init__(self):
        self.silence, self.fitting, self.within = OTHERWISE, False, []

    @contextmanager
    def call(self, progress, patience):
        self.within.append((progress(), patience))
        yield
        self.within.append("end")


def test_others_know_that_a_batch_is_waited_for():
    meeting = FakeMeeting()
    peers = Peers(0, (("CPU:0",), ("CPU:0",)), ("m0", "m1"), meeting)
    batches = peers.fetched(iter("ab"))
    assert next(batches) == "a"
    assert meeting.within == [((0, True), DATA), "end"]
    assert list(batches) == ["b"]
    assert len(meeting.within) == 2 * 3  # the end of the data is waited for too


def test_a_silent_machine_is_missed_soon_in_a_fit_once_steps_are_known():
    meeting, pace = FakeMeeting(), CallPace()
    peers = Peers(0, (("CPU:0",), ("CPU:0",)), ("m0", "m1"), meeting)
    for seconds in (9.0, 0.1):
        pace.note(seconds)
    with peers.calling(lambda: (0, False), pace):
        assert meeting.silence == OTHERWISE  # a step by hand
    with peers.fitting():
        peers.calling(lambda: (0, False), CallPace())
        assert meeting.silence == OTHERWISE
        peers.calling(lambda: (0, False), pace)
        assert meeting.silence == IN_STEPS
        pace.note(4.0)
        peers.calling(lambda: (0, False), pace)
        assert meeting.silence == 12.0
        peers.rest()
        assert meeting.silence == OTHERWISE  # between epochs of Keras
        peers.calling(lambda: (0, False), pace)
        assert meeting.silence == 12.0
    assert meeting.silence == OTHERWISE


@pytest.mark.long
def test_a_training_joined_at_times_goes_on_from_a_save(of_long_cases):
    for machine in of_long_cases:
        (never, whole), (resumed, cut) = machine["diloco_saved"]
        assert (never, resumed) == (None, 8)
        assert_equal(cut, whole, 1e-12)
        assert cut == of_long_cases[0]["diloco_saved"][1][1]  # bit for bit the same on all machines


@pytest.mark.long
def test_a_keras_training_is_told_to_end_and_goes_on_as_on_one_machine(two_by_two, tmp_path):
    """SIGTERM came to one machine of two after 7 of 15 batches; every third is saved."""
    whole = machine_fits.saved_fit(4, tmp_path / "whole", norm=False)
    for machine in two_by_two:
        told = machine["keras_saved"]
        assert told["code"] == RESUMABLE
        # The other machine hears of it within half a second, or at the end of the epoch.
        assert "step-000000000007" <= told["steps"][-1] <= "step-000000000010"
        assert_equal(told["end"], whole, 1e-10)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:A run that goes on from a checkpoint")
def test_a_keras_training_that_was_cut_ends_as_one_that_was_not(of_long_cases, tmp_path):
    """On as many machines to the last bit; on one machine with as many devices to rounding."""
    on_one = machine_fits.saved_fit(4, tmp_path / "whole")
    gone_on = machine_fits.saved_fit(4, Path(of_long_cases[0]["keras_saved_whole"]["copy"]))
    assert_equal(gone_on, on_one, 1e-10)
    for machine in of_long_cases:
        told = machine["keras_saved_whole"]
        assert told["end"] == told["whole"]
        assert_equal(told["end"], on_one, 1e-10)


def test_machines_do_not_part_by_what_their_callbacks_hear_and_do(two_by_two):
    first, last = (machine["keras_parted"] for machine in two_by_two)
    for told in (first, last):
        assert told["parted"] == first["parted"]  # what the first machine heard
        assert len(told["parted"]["val_loss"]) == 2  # which ended after an epoch without a better one
        assert told["rate"] == first["rate"] < 0.05
        assert told["lines"] == 3  # of one table, written once
        assert told["ended"] == [[0], 2]
        assert "the end of epoch 1 of fit()" in told["slower"]
        assert "learning_rate" in told["slower"]
        assert "has other values on m1 than on the other machines" in told["slower"]
        assert "callbacks='BackupAndRestore': is for one machine" in told["backup"]
        assert "validation_freq='2': is so on m1, and 1 on m0" in told["validation"]


def test_data_of_their_own_end_together_and_are_counted(two_by_two):
    for machine in two_by_two:
        losses, steps, examples, shares, exact = machine["uneven_shards"]
        assert (losses, steps, examples) == (3, 3, 2 * 3 * 5)
        assert shares == [[0.5, 0.5], [0.25, 0.25]]  # of the machine's own rows; of a batch for all
        assert "checkpoint.data='exact'" in exact
        assert "each has data of its own" in exact


def test_what_is_for_one_machine_is_refused_by_name(two_by_two):
    for machine in two_by_two:
        for name, word in (
            ("asynchronous", "sync='Asynchronous'"),
            ("local", "sync='LocalSGD'"),
            ("elastic", "sync='Elastic'"),
            ("measured", "shares='measured'"),
            ("pipeline", "a cn.Pipeline"),
            ("auto", "compile='auto'"),
            ("whole batches", "per_device=True"),
            ("own step", "train_step of its own"),
        ):
            assert word in machine["refused_modes"][name]
            assert "one machine" in machine["refused_modes"][name] or name == "measured"
