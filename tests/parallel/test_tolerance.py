"""What is rounding, told from what one device does to itself."""

import numpy as np
import pytest

from colonnade.run.parallel.tolerance import CANCELLED, margin, most_noise, noise, scales, unlike

STEP = 2.0**-23


def test_a_result_that_nothing_moves_has_the_rounding_of_its_largest_number():
    assert noise("output", np.array([2.0, -8.0]), 8.0, STEP, [{"output": np.array([2.0, -8.0])}]) == 8 * STEP


def test_what_moved_digits_do_is_rounding_and_what_is_more_is_not():
    expected = np.array([1.0])
    small, large = ({"output": expected + d} for d in (5e-6, 0.5))
    assert noise("output", expected, 1.0, STEP, [small]) == pytest.approx(5e-6)
    assert noise("output", expected, 1.0, STEP, [small, large]) == pytest.approx(5e-6)


def test_a_gradient_that_cancels_keeps_the_rounding_of_the_others():
    nothing, moved = np.array([0.0]), {"gradient of b": np.array([20 * STEP])}
    assert noise("gradient of b", nothing, 1.0, STEP, [moved]) == 20 * STEP
    beyond = {"gradient of b": np.array([2 * CANCELLED * STEP])}
    assert noise("gradient of b", nothing, 1.0, STEP, [beyond]) == 0


def test_another_order_counts_up_to_the_root_of_how_many_are_added():
    expected = np.array([1.0])
    for moved, allowed in ((3 * STEP, 3 * STEP), (30 * STEP, 4 * STEP)):
        orders = [{"loss": expected + moved}]
        assert noise("loss", expected, 1.0, STEP, [], orders, rows=16) == pytest.approx(allowed)


def test_no_noise_is_more_than_the_most():
    expected = np.array([1.0])
    orders = [{"loss": expected + 1.0}]
    for moved in (1e-6, 3e-4, 1.0):
        found = noise("loss", expected, 1.0, STEP, [{"loss": expected + moved}], orders, rows=16)
        assert found <= most_noise(expected, 1.0, STEP, rows=16)


def test_kinds_have_scales_and_halves_more_room():
    values = {"gradient of a": np.array([3.0]), "gradient of b": np.array([-4.0]), "loss": np.array(1.0)}
    assert scales(values) == {"gradient": 4.0, "loss": 1.0}
    assert margin(2.0**-7) > margin(STEP)


def test_names_are_numbered_where_they_are_taken():
    assert unlike({"a", "a #2"}, "a") == "a #3"
    assert unlike({}, "a") == "a"
