import pynvml
import pytest

from colonnade.describe.topology import Topology
from colonnade.hardware.cards import detect
from colonnade.hardware.doctors.admission import (
    CODE,
    COMPILED,
    NOTHING,
    architecture,
    compute_mode,
    fit_of,
)
from colonnade.hardware.fake import FakeNvml
from colonnade.hardware.probes.probe import TensorFlow

# What the wheel of TensorFlow 2.21 says of itself.
BUILT = TensorFlow("2.21.0", True, "12.5.1", 2, built_for=("sm_60", "sm_70", "sm_80", "sm_89", "compute_90"))


def cards(**options):
    return detect(FakeNvml(Topology.uniform(2, link="PIX"), **options)).cards


@pytest.mark.parametrize(
    ("capability", "state"),
    [
        ((6, 1), "good"),
        ((7, 5), "good"),
        ((8, 6), "good"),
        ((8, 9), "good"),
        ((9, 0), "good"),  # compute_90 has machine code too
        ((10, 0), "note"),
        ((12, 0), "note"),
        ((5, 2), "blocks"),
    ],
)
def test_an_architecture_without_code_is_found_with_the_remedy(capability, state):
    found = architecture(cards(capability=capability), BUILT)
    assert found.state == state
    assert f"cards of {capability[0]}.{capability[1]}" in found.found
    assert bool(found.remedy) == (state != "good")


@pytest.mark.parametrize(
    ("capability", "built_for", "fit"),
    [
        ((8, 6), ["compute_80"], CODE),
        ((8, 0), ["sm_86"], NOTHING),
        ((8, 6), ["compute_89"], NOTHING),
        ((9, 0), ["sm_80"], NOTHING),
        ((9, 0), ["compute_80", "sm_90"], CODE),
        ((9, 0), ["sm_90a"], CODE),
        ((10, 3), ["sm_100"], CODE),
        ((10, 3), ["compute_100a"], NOTHING),
        ((10, 3), ["sm_100f"], CODE),
        ((12, 0), ["compute_100f"], NOTHING),
        ((12, 0), ["compute_100"], COMPILED),
        ((12, 0), ["7.5"], COMPILED),
    ],
)
def test_what_a_build_has_for_a_card(capability, built_for, fit):
    """As in TensorFlow's configure.py: compute_XY is binary code and PTX, sm_XY the first alone."""
    assert fit_of([capability], built_for) == fit


def test_of_several_cards_the_worst_counts():
    assert fit_of([(8, 0), (12, 0), (7, 0)], ["sm_70", "compute_80"]) == COMPILED
    assert fit_of([(8, 0), (12, 0), (6, 0)], ["sm_70", "compute_80"]) == NOTHING


def test_what_nobody_tells_is_not_known():
    assert architecture((), BUILT).state == "unknown"
    assert architecture(cards(), TensorFlow("2.21.0", True)).state == "unknown"
    assert compute_mode(()).state == "unknown"


@pytest.mark.parametrize(
    ("mode", "state", "said"),
    [
        (pynvml.NVML_COMPUTEMODE_DEFAULT, "good", "several processes"),
        (pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS, "note", "cards 0, 1: one process at a time"),
        (pynvml.NVML_COMPUTEMODE_PROHIBITED, "blocks", "cards 0, 1: no process"),
    ],
)
def test_a_mode_that_keeps_processes_out_is_found(mode, state, said):
    found = compute_mode(cards(mode=mode))
    assert (found.state, said in found.found) == (state, True)
    assert ("nvidia-smi -c DEFAULT" in found.remedy) == (state != "good")
