"""What one layer costs, as plain data: FLOPs, bytes, and the seconds that were measured."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from dataclasses import fields as dataclass_fields
from typing import Any

from colonnade.describe import fields
from colonnade.describe.fields import BYTES, NUMBER, POSITIVE, TEXT, Rule, optional, whole_from
from colonnade.errors import Problem, is_whole


@dataclass(frozen=True)
class Timing:
    """Seconds that a layer took for a batch of so many examples."""

    batch: int
    forward: float
    backward: float
    # Where devices share cores: how many times the work of one several do that are at work at once.
    gain: float | None = None


@dataclass(frozen=True)
class LayerCost:
    """What a layer costs; bytes and FLOPs are those of one example, except where it says otherwise.

    A layer without timings takes as long as its FLOPs and bytes take on the device at hand.
    """

    name: str
    flops: float = 0.0  # of the forward pass; the backward pass has twice as many
    parameters: int = 0  # bytes, of all examples together
    activations: int = 0  # bytes kept from the forward pass to the backward pass
    output: int = 0  # bytes handed to the next layer
    timings: tuple[Timing, ...] = ()  # at one batch size or at two
    # Split by width over devices:
    exchanged: int = 0  # bytes that the devices sum up in a forward pass; 0 where it cannot be split
    exchanges: int = 0  # in how many messages
    unsplit: int = 0  # bytes of activations that every device keeps whole
    # Recomputed in the backward pass, if a plan asks for the cheap ones only:
    cheap: int = 0  # bytes of activations that cost little to recompute
    cheap_flops: float = 0.0  # what that costs
    # Parameters whose gradient is sparse, of which only rows travel:
    sparse: int = 0  # bytes of them, a part of the parameters
    rows: int = 0  # bytes of the rows that an example touches
    # Bytes of each variable that the parameters are in, which are dealt out whole; one variable by default.
    pieces: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "timings", tuple(self.timings))
        if isinstance(self.pieces, Iterable):
            object.__setattr__(self, "pieces", tuple(self.pieces))

    def __hash__(self) -> int:
        """Kept, because planning asks for it often."""
        if "_hash" not in self.__dict__:
            values = (getattr(self, field.name) for field in dataclass_fields(self))
            object.__setattr__(self, "_hash", hash(tuple(values)))
        return int(self.__dict__["_hash"])


LAYER_RULES: dict[str, Rule] = {
    "name": TEXT,
    "flops": NUMBER,
    **dict.fromkeys(
        ("parameters", "activations", "output", "exchanged", "unsplit", "cheap", "sparse", "rows"), BYTES
    ),
    "exchanges": whole_from(0, 2**31),
    "cheap_flops": NUMBER,
}
TIMING_RULES: dict[str, Rule] = {
    "batch": whole_from(1),
    "forward": NUMBER,
    "backward": NUMBER,
    "gain": optional(POSITIVE),
}


def piece_problems(layer: LayerCost, at: str) -> Iterator[Problem]:
    """What is wrong with the sizes of a layer's variables."""
    pieces: Any = layer.pieces
    listed = isinstance(pieces, tuple) and all(is_whole(size, 0, 2**62) for size in pieces)
    if not listed:
        rule = "must be a list of whole numbers of bytes, one for each variable"
        yield Problem(f"{at}pieces", fields.shown(pieces), rule, "Leave it out")
    elif pieces and sum(pieces) != layer.parameters:
        rule = f"must add up to the parameters, which are {fields.shown(layer.parameters)} bytes"
        yield Problem(f"{at}pieces", fields.shown(sum(pieces)), rule, "Leave it out")
