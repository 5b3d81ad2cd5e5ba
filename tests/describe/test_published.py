"""Published sizes against published totals."""

import pytest

from colonnade.describe.workload import Workload
from colonnade.errors import InvalidArgument


def test_a_transformer_has_the_published_number_of_parameters():
    """GPT-3: 175 billion with 96 layers, 12 288 wide."""
    work = Workload.transformer(hidden=12288, layers=96, heads=96, sequence=2048, vocabulary=51200, batch=1)
    assert work.parameters / 2 == pytest.approx(175e9, rel=0.01)
    assert len(work.layers) == 98


def test_a_transformer_has_the_published_flops():
    """A step has 72 B s l h^2 (1 + s / 6h + V / 12lh) without recomputing (Narayanan and others, 2021)."""
    hidden, layers, sequence, vocabulary = 2304, 24, 2048, 51200
    work = Workload.transformer(
        hidden=hidden, layers=layers, heads=24, sequence=sequence, vocabulary=vocabulary, batch=1
    )
    bends = 1 + sequence / (6 * hidden) + vocabulary / (12 * layers * hidden)
    assert 3 * work.flops == pytest.approx(72 * sequence * layers * hidden**2 * bends)


def test_parts_of_a_network_add_up():
    work = Workload.convnet(parameters=138_357_544, flops=31e9, batch=64, dense=0.9)
    assert work.parameters / 4 == pytest.approx(138_357_544, rel=1e-6)
    assert work.flops == pytest.approx(31e9)
    assert work.layers[-1].parameters > 8 * sum(layer.parameters for layer in work.layers[:-1])


@pytest.mark.parametrize(
    "sizes",
    [
        {"hidden": 0, "layers": 2, "heads": 2, "sequence": 2, "vocabulary": 2},
        {"hidden": 8, "layers": -1, "heads": 2.5, "sequence": 2, "vocabulary": 2},
    ],
)
def test_sizes_that_are_none(sizes):
    with pytest.raises(InvalidArgument, match=r"Workload\.transformer"):
        Workload.transformer(**sizes, batch=2)


def test_all_that_is_wrong_with_a_network_is_told():
    with pytest.raises(InvalidArgument) as error:
        Workload.convnet(parameters=0, flops=float("nan"), batch=1, dense=2)
    assert {problem.argument for problem in error.value.problems} == {"parameters", "flops", "dense"}
