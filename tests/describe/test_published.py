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


def test_bytes_follow_the_dtype():
    """In 32 bits a parameter has 4 bytes and two moments, and activations twice as many but for masks."""
    sizes = {"hidden": 64, "layers": 2, "heads": 4, "sequence": 16, "vocabulary": 100, "batch": 1}
    half, full, keras = (
        Workload.transformer(**sizes, dtype=dtype) for dtype in ("bfloat16", "float32", "mixed_bfloat16")
    )
    count = half.parameters // 2
    assert (half.slots, full.parameters, full.slots) == (12 * count, 4 * count, 8 * count)
    assert (keras.parameters, keras.slots) == (4 * count, 8 * count)
    state, matrices = 16 * 64, 4 * 16 * 16
    assert half.layers[1].activations == keras.layers[1].activations == 34 * state + 5 * matrices
    assert full.layers[1].activations == 66 * state + 9 * matrices
    assert full.layers[1].output == 2 * half.layers[1].output
    with pytest.raises(InvalidArgument, match="dtype"):
        Workload.transformer(**sizes, dtype="int8")


def test_what_a_network_keeps_is_told_or_not_known():
    sizes = {"parameters": 25_600_000, "flops": 8.2e9, "batch": 8}
    unknown = Workload.convnet(**sizes)
    assert not unknown.fits_known
    known = Workload.convnet(**sizes, activations=90_000_000, optimizer="adam")
    assert known.fits_known
    assert sum(layer.activations for layer in known.layers) == pytest.approx(90_000_000, rel=1e-6)
    assert known.slots == 2 * known.parameters
    assert unknown.slots == unknown.parameters
    assert Workload.convnet(**sizes, optimizer="sgd").slots == 0
    with pytest.raises(InvalidArgument) as error:
        Workload.convnet(**sizes, activations=-1, optimizer="best")
    assert {problem.argument for problem in error.value.problems} == {"activations", "optimizer"}
