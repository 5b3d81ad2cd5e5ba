"""Several machines against one with as many devices: the same losses, parameters, metrics, the same NaN.

What is in float64 differs by the order of additions only: relative differences of a few 1e-16 in a step, that
grow over the few steps of a case to well below 1e-10. Float32 is held to 1e-5 for the same reason.
"""

import secrets

import machine_cases
import numpy as np
import pytest
from together import on_machines

TOLERANCE = {"scaled": 1e-5, "keras_fit": 1e-5, "keras_gathered": 1e-5}


@pytest.fixture(scope="module")
def two_by_two():
    """Two machines with two devices each."""
    cases = [*machine_cases.CASES, *machine_cases.WRONG]
    return on_machines(cases, [2, 2], SPOILT=secrets.token_hex(4))


@pytest.mark.parametrize("name", [n for n in machine_cases.CASES if n != "nan_stop"])
def test_two_machines_with_two_devices_are_one_with_four(two_by_two, name):
    one = machine_cases.CASES[name](4)
    for machine in two_by_two:
        assert_equal(machine[name], one, TOLERANCE.get(name, 1e-10))


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
        ("other_steps", ["steps='5'", "is so on m1, and 4 on m0"]),
    ],
)
def test_what_differs_is_told_on_every_machine(two_by_two, name, words):
    for machine in two_by_two:
        for word in words:
            assert word in machine[name]


def test_a_spoilt_machine_is_named_and_nothing_is_saved(two_by_two):
    for machine in two_by_two:
        words, steps = machine["spoilt"]
        assert "the checkpoint of step 2" in words or "the checkpoint of step 4" in words
        assert "has other values on m1 than on the other machines" in words
        assert "step-000000000004" not in steps


def test_data_of_their_own_end_together_and_are_counted(two_by_two):
    for machine in two_by_two:
        losses, steps, examples, _, exact = machine["uneven_shards"]
        assert (losses, steps, examples) == (3, 3, 2 * 3 * 5)
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
            ("own step", "train_step of its own"),
        ):
            assert word in machine["refused_modes"][name]
            assert "one machine" in machine["refused_modes"][name]
