"""Figures of made-up outcomes: every mode is drawn, with the means and the extremes that were made up."""

import numpy as np
import pytest
from outcomes import DESIGN, made_up

from colonnade.experiment.design import MODES
from colonnade.show.experiment import plots
from colonnade.show.experiment.drawing import style


def accuracy(trial, rate):
    return 0.9 - 0.01 * list(MODES).index(trial.mode) - 0.001 * trial.num_devices


@pytest.fixture(scope="module")
def findings():
    return made_up(accuracy)


def test_every_mode_has_its_own_look_and_a_family():
    assert set(plots.LOOKS) == set(MODES)
    assert len(set(plots.LOOKS.values())) == len(MODES)
    assert {mode for family in plots.FAMILIES.values() for mode in family} == set(MODES)


def test_by_devices_shows_means_over_the_seeds_and_bars_from_the_worst_to_the_best(findings):
    with style("devices"):
        figure = plots.by_devices(findings)
    first = figure.axes[0]
    bars = {container.get_label(): container for container in first.containers}
    assert list(bars) == list(plots.FAMILIES["modes"])
    line, _, (extent,) = bars["synchronous"].lines
    means = [100 * (0.9 - 0.001 * n) for n in DESIGN.devices]
    np.testing.assert_allclose(line.get_ydata(), means)
    ends = np.array([segment[:, 1] for segment in extent.get_segments()])
    np.testing.assert_allclose(ends, [[mean - 0.1, mean + 0.1] for mean in means])
    assert [tick.get_text() for tick in first.get_xticklabels()] == ["1", "2", "6"]
