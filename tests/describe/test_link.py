import pytest

from colonnade.describe.link import DEVICE_RULES, SELF, SHARED, Device, Link
from colonnade.errors import InvalidArgument


def test_every_field_of_a_device_has_a_rule():
    assert set(vars(Device())) == set(DEVICE_RULES)


def test_huge_whole_numbers_are_no_figures():
    with pytest.raises(InvalidArgument) as error:
        Link("PIX", 10**400, 10**400, True)
    assert {problem.argument for problem in error.value.problems} == {"bandwidth", "latency"}


def test_links_of_the_same_memory_cost_nothing():
    assert SELF.bandwidth == SHARED.bandwidth == float("inf")
    assert SELF.latency == SHARED.latency == 0


def test_a_link_without_a_kind_or_with_bad_figures_is_one_error():
    with pytest.raises(InvalidArgument) as error:
        Link("NVX", -1.0, float("nan"), 1)  # type: ignore[arg-type]
    assert {problem.argument for problem in error.value.problems} == {"kind", "bandwidth", "latency", "peer"}
