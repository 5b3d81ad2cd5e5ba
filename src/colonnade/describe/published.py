"""Workloads from published sizes: transformers by their dimensions, convolutional networks by their totals.

Nothing here is timed. What a layer takes follows from its FLOPs and from the bytes that it keeps, on the
device that a plan gives it (see `reason.simulator.layer_time`).
"""

from collections.abc import Iterator
from dataclasses import dataclass

from colonnade.describe.fields import number, shown
from colonnade.describe.layer_cost import LayerCost
from colonnade.errors import InvalidArgument, Problem, check, whole

HALF, FULL = 2, 4  # bytes of a number

# Numbers that an optimizer keeps beside a parameter.
SLOTS = {"sgd": 0, "momentum": 1, "rmsprop": 1, "adam": 2}
# Variables of equal size that a quarter of a convolutional network is taken to be in: VGG16 has 2 or 3,
# ResNet-50 has 10 or more.
QUARTER = 3


@dataclass(frozen=True)
class Width:
    """Bytes of what a training in some precision keeps."""

    parameter: int
    number: int  # of an activation
    adam: int  # of all that Adam keeps beside a parameter


WIDTHS = {
    # Parameters in 16 bits; a copy in 32 bits and two moments (Rajbhandari and others, 2020).
    **dict.fromkeys(("float16", "bfloat16"), Width(HALF, HALF, 3 * FULL)),
    # Keras's policy: variables in 32 bits, whose copies in 16 bits are made when they are used.
    **dict.fromkeys(("mixed_float16", "mixed_bfloat16"), Width(FULL, HALF, 2 * FULL)),
    **dict.fromkeys(("float32", "float32 without TF32"), Width(FULL, FULL, 2 * FULL)),
}


def width_of(dtype: object) -> Width:
    """The bytes of numbers in some precision."""
    if not isinstance(dtype, str) or dtype not in WIDTHS:
        problem = Problem("dtype", shown(dtype), f"must be one of {', '.join(WIDTHS)}", "Use float16")
        raise InvalidArgument("Workload", [problem])
    return WIDTHS[dtype]


def transformer(
    hidden: int, layers: int, heads: int, sequence: int, vocabulary: int, dtype: str = "float16"
) -> list[LayerCost]:
    """A decoder: an embedding, `layers` blocks of attention and a network four times as wide, and the head.

    FLOPs are those of the matrix products (Narayanan and others, 2021); activations those that Korthikanti
    and others (2022) count for 16 bits: 34 bytes per number of the hidden state, of which two are masks of
    one byte, and 5 per number of the attention's matrices, of which one is a mask. The latter cost little to
    recompute.
    """
    sizes = (
        ("hidden", hidden),
        ("layers", layers),
        ("heads", heads),
        ("sequence", sequence),
        ("vocabulary", vocabulary),
    )
    check("Workload.transformer()", [p for name, size in sizes for p in whole(name, size, 1, like=1024)])
    width = width_of(dtype)
    each, number = width.parameter, width.number
    state = sequence * hidden  # numbers of the hidden state of an example
    matrices = heads * sequence * sequence  # of attention
    attention = 4.0 * sequence * state  # scores, and values by them
    square = each * hidden * hidden
    block = LayerCost(
        "block",
        flops=24.0 * state * hidden + attention,
        parameters=12 * square,
        activations=(16 * number + 2) * state + (2 * number + 1) * matrices,
        output=number * state,
        exchanged=2 * number * state,
        exchanges=2,
        unsplit=(4 * number + 2) * state,
        cheap=(2 * number + 1) * matrices,
        cheap_flops=attention,
        pieces=(3 * square, square, 4 * square, 4 * square),
    )
    embedding = LayerCost(
        "embedding",
        parameters=each * vocabulary * hidden,
        output=number * state,
        exchanged=number * state,
        exchanges=1,
    )
    # The matrix of the head is that of the embedding: its gradient is counted there.
    head = LayerCost(
        "head",
        flops=2.0 * state * vocabulary,
        activations=number * state + FULL * sequence * vocabulary,
        output=FULL,
        exchanged=FULL * sequence,
        exchanges=1,
        unsplit=number * state,
    )
    return [embedding, *[block] * layers, head]


def convnet(
    parameters: int,
    flops: float,
    dense: float = 0.0,
    activations: int | None = None,
    optimizer: str = "momentum",
    dtype: str = "float32",
) -> list[LayerCost]:
    """Convolutions, which have nearly all FLOPs, and dense layers at the end, which have `dense` of the
    parameters.

    Of the convolutions the later ones have most of the parameters: every stage of such networks has twice the
    channels, so four times the parameters of the one before, and about as many FLOPs. Its images have half as
    many rows and columns, so each stage keeps half of what the one before does.
    """
    check("Workload.convnet()", _convnet_problems(parameters, flops, dense, activations, optimizer))
    width = width_of(dtype)
    quarters = [1, 4, 16, 64]
    halves = [8, 4, 2, 1]
    convolutions, kept = round(parameters * (1 - dense)), activations or 0
    costs = []
    for i, (part, room) in enumerate(zip(quarters, halves, strict=True)):
        size = width.parameter * (convolutions * part // sum(quarters))
        pieces = [size // QUARTER] * (QUARTER - 1)
        share = kept * room // sum(halves)
        costs.append(
            LayerCost(
                f"convolutions {i + 1}",
                flops / len(quarters),
                size,
                activations=share,
                pieces=(*pieces, size - sum(pieces)),
            )
        )
    return [*costs, LayerCost("dense", 0.0, width.parameter * round(parameters * dense))]


def _convnet_problems(
    parameters: object, flops: object, dense: object, activations: object, optimizer: object
) -> Iterator[Problem]:
    yield from whole("parameters", parameters, 1, like=25_000_000)
    if not number(flops):
        yield Problem(
            "flops", flops, "must be a number, 0 or more", "Use those of one example's forward pass"
        )
    if not number(dense) or dense > 1:  # type: ignore[operator]
        yield Problem("dense", dense, "must be a part from 0 to 1", "Leave it out")
    if activations is not None:
        yield from whole("activations", activations, 0, like=100_000_000)
    if not isinstance(optimizer, str) or optimizer not in SLOTS:
        rule = f"must be one of {', '.join(SLOTS)}"
        yield Problem("optimizer", shown(optimizer), rule, "Use the one that is nearest")
