"""Workloads from published sizes: transformers by their dimensions, convolutional networks by their totals.

Nothing here is timed. What a layer takes follows from its FLOPs and from the bytes that it keeps, on the
device that a plan gives it (see `reason.simulator.layer_time`).
"""

from collections.abc import Iterator

from colonnade.describe.fields import number
from colonnade.describe.layer_cost import LayerCost
from colonnade.errors import Problem, check, whole

HALF, FULL = 2, 4  # bytes of a number

# In mixed precision with Adam a parameter has a copy in 32 bits and two moments (Rajbhandari and others,
# 2020).
ADAM_MIXED = 3 * FULL


def transformer(hidden: int, layers: int, heads: int, sequence: int, vocabulary: int) -> list[LayerCost]:
    """A decoder: an embedding, `layers` blocks of attention and a network four times as wide, and the head.

    FLOPs are those of the matrix products (Narayanan and others, 2021); activations those that Korthikanti
    and others (2022) count for 16 bits: 34 bytes per number of the hidden state, and 5 per number of the
    attention's matrices, which cost little to recompute.
    """
    sizes = (
        ("hidden", hidden),
        ("layers", layers),
        ("heads", heads),
        ("sequence", sequence),
        ("vocabulary", vocabulary),
    )
    check("Workload.transformer()", [p for name, size in sizes for p in whole(name, size, 1, like=1024)])
    state = sequence * hidden  # numbers of the hidden state of an example
    matrices = heads * sequence * sequence  # of attention
    attention = 4.0 * sequence * state  # scores, and values by them
    block = LayerCost(
        "block",
        flops=24.0 * state * hidden + attention,
        parameters=HALF * 12 * hidden * hidden,
        activations=34 * state + 5 * matrices,
        output=HALF * state,
        exchanged=2 * HALF * state,
        exchanges=2,
        unsplit=10 * state,
        cheap=5 * matrices,
        cheap_flops=attention,
    )
    embedding = LayerCost(
        "embedding",
        parameters=HALF * vocabulary * hidden,
        output=HALF * state,
        exchanged=HALF * state,
        exchanges=1,
    )
    # The matrix of the head is that of the embedding: its gradient is counted there.
    head = LayerCost(
        "head",
        flops=2.0 * state * vocabulary,
        activations=HALF * state + FULL * sequence * vocabulary,
        output=FULL,
        exchanged=FULL * sequence,
        exchanges=1,
        unsplit=HALF * state,
    )
    return [embedding, *[block] * layers, head]


def convnet(parameters: int, flops: float, dense: float = 0.0) -> list[LayerCost]:
    """Convolutions, which have nearly all FLOPs, and dense layers at the end, which have `dense` of the
    parameters.

    Of the convolutions the later ones have most of the parameters: every stage of such networks has twice the
    channels, so four times the parameters of the one before, and about as many FLOPs.
    """
    check("Workload.convnet()", _convnet_problems(parameters, flops, dense))
    quarters = [1, 4, 16, 64]
    convolutions = round(parameters * (1 - dense))
    costs = [
        LayerCost(
            f"convolutions {i + 1}", flops / len(quarters), FULL * (convolutions * part // sum(quarters))
        )
        for i, part in enumerate(quarters)
    ]
    return [*costs, LayerCost("dense", 0.0, FULL * round(parameters * dense))]


def _convnet_problems(parameters: object, flops: object, dense: object) -> Iterator[Problem]:
    yield from whole("parameters", parameters, 1, like=25_000_000)
    if not number(flops):
        yield Problem(
            "flops", flops, "must be a number, 0 or more", "Use those of one example's forward pass"
        )
    if not number(dense) or dense > 1:  # type: ignore[operator]
        yield Problem("dense", dense, "must be a part from 0 to 1", "Leave it out")
