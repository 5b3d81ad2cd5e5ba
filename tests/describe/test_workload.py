import json

import pytest
from workloads import drawn, timed

from colonnade.describe.layer_cost import LayerCost, Timing
from colonnade.describe.workload import Workload
from colonnade.errors import InvalidArgument


@pytest.mark.parametrize("seed", range(5))
def test_json_both_ways(seed):
    work = drawn(seed)
    assert Workload.from_json(work.to_json()) == work


def test_a_workload_without_layers_is_refused():
    with pytest.raises(InvalidArgument, match="at least one layer"):
        Workload.of([], batch=8)


def test_all_that_is_wrong_comes_in_one_error():
    with pytest.raises(InvalidArgument) as error:
        Workload.of(
            [
                LayerCost("a", flops=float("nan"), parameters=-1),
                LayerCost("b", activations=4, unsplit=5, timings=(Timing(0, 1.0, -1.0),)),
                LayerCost("c", timings=(Timing(4, 1.0, 1.0), Timing(4, 2.0, 2.0))),
            ],
            batch=0,
            update=-1.0,
        )
    assert {problem.argument for problem in error.value.problems} == {
        "batch",
        "update",
        "layers[0].flops",
        "layers[0].parameters",
        "layers[1].unsplit",
        "layers[1].timings[0].batch",
        "layers[1].timings[0].backward",
        "layers[2].timings",
    }


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda plain: plain.update(colour="red"), "colour"),
        (lambda plain: plain["layers"][0].update(weight=1), r"layers\[0\]\.weight"),
        (lambda plain: plain.update(version=2), "version"),
        (lambda plain: plain.update(layers=3), "layers"),
        (lambda plain: plain["layers"][0].update(timings=[{"batch": 1}]), r"timings\[0\]\.forward"),
        (lambda plain: plain.pop("batch"), "batch"),
        (lambda plain: plain["layers"][0].update(flops=None), r"layers\[0\]\.flops"),
    ],
)
def test_json_that_says_something_else_is_refused(change, said):
    plain = json.loads(timed([1.0, 2.0]).to_json())
    change(plain)
    with pytest.raises(InvalidArgument, match=said):
        Workload.from_json(json.dumps(plain))


def test_a_sparse_gradient_is_as_large_as_the_rows_of_a_slice():
    table = LayerCost("table", parameters=1200, sparse=1000, rows=10)
    work = Workload.of([table, ("dense", 1.0, 500)], batch=8)
    assert work.sparse_gradient(table, 3) == 30
    assert work.sparse_gradient(table, 10**6) == 1000
    assert work.dense_gradient(table) == 200
    assert (work.dense_gradient(work.layers[1]), work.sparse_gradient(work.layers[1], 3)) == (500, 0)


def test_gradients_may_have_another_size_than_parameters():
    work = Workload.of([("a", 1.0, 100), ("b", 1.0, 300)], batch=8, gradients=800)
    assert [work.dense_gradient(layer) for layer in work.layers] == [200, 600]


@pytest.mark.parametrize("pieces", [3, [1, "a"], [1, 2], [None]])
def test_variables_must_add_up_to_the_parameters(pieces):
    plain = json.loads(timed([1.0], parameters=10).to_json())
    plain["layers"][0]["pieces"] = pieces
    with pytest.raises(InvalidArgument, match=r"layers\[0\]\.pieces"):
        Workload.from_json(json.dumps(plain))
    plain["layers"][0]["pieces"] = [4, 6]
    assert Workload.from_json(json.dumps(plain)).layers[0].pieces == (4, 6)
