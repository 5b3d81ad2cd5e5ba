"""What one layer costs, as plain data: FLOPs, bytes, and the seconds that were measured."""

from dataclasses import dataclass

from colonnade.describe.fields import BYTES, NUMBER, POSITIVE, TEXT, Rule, optional, whole_from


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

    def __post_init__(self) -> None:
        object.__setattr__(self, "timings", tuple(self.timings))


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
