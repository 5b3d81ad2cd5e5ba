import keras
import pytest

from colonnade.run.keras_steps.keras_losses import missing, name_of, of_slices, uncounted


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (keras.losses.MeanSquaredError(reduction="sum"), "reduction='sum'"),
        (keras.losses.SparseCategoricalCrossentropy(ignore_class=0), "ignore_class=0"),
        (keras.losses.Dice(), "a quotient of sums"),
        ("tversky", "a quotient of sums"),
        (keras.losses.Circle(), "compares all examples"),
        ({"a": "mse", "b": keras.losses.circle}, "compares all examples"),
    ],
)
def test_losses_that_are_no_means_over_examples_are_named(loss, said):
    (problem,) = of_slices(loss)
    assert problem.argument == "loss"
    assert said in problem.rule


@pytest.mark.parametrize(
    "loss", ["mse", keras.losses.MeanSquaredError(), keras.losses.Dice(axis=1), {"a": "mae", "b": None}]
)
def test_means_are_let_go(loss):
    assert list(of_slices(loss)) == []


def test_a_loss_has_a_name_in_every_form():
    assert name_of("mse") == "mse"
    assert name_of(keras.losses.mean_squared_error) == "mean_squared_error"
    assert name_of(keras.losses.MeanSquaredError(name="own")) == "own"


def test_a_target_is_missed_where_the_loss_needs_one():
    made = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
    made.compile("sgd", "mse")
    (problem,) = missing(made, None)
    assert problem.argument == "y"
    assert list(missing(made, 1.0)) == []


def test_what_no_mean_of_slices_can_be_is_told_to_devices_that_do_not_wait():
    (mask,) = uncounted("net", {}, masked=True, summed=False)
    (each,) = uncounted("net", {("adds", 0): "sum"}, masked=False, summed=True)
    (added,) = uncounted("net", {("adds", 0): "sum"}, masked=False, summed=False)
    assert "mask at its output" in mask.rule
    assert "a loss for each example" in each.rule
    assert (added.argument, added.value) == ("add_loss", "adds")
