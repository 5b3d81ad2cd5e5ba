"""`cn.Workload`: what a training step costs, layer by layer, as plain data."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from dataclasses import fields as dataclass_fields
from typing import Any

from colonnade.describe import fields, published
from colonnade.describe.fields import BYTES, FLAG, NUMBER, POSITIVE, TEXT, Rule, optional, whole_from
from colonnade.describe.layer_cost import LAYER_RULES, TIMING_RULES, LayerCost, Timing, piece_problems
from colonnade.errors import Problem, check

VERSION = 1
FIX = "Build it with cn.workload(), Workload.of() or Workload.transformer()"


RULES: dict[str, Rule] = {
    "name": TEXT,
    "batch": whole_from(1),
    "device": TEXT,
    "dtype": TEXT,
    "slots": BYTES,
    "gradients": optional(BYTES),
    "update": NUMBER,
    "input": BYTES,
    "cores": optional(POSITIVE),
    "overhead": NUMBER,
    "addition": NUMBER,
    "pace": POSITIVE,
    "fits_known": FLAG,
}


@dataclass(frozen=True)
class Workload:
    """One training step: its layers from the first to the last, and the update.

    Example:
        >>> import colonnade as cn
        >>> net = cn.Workload.of([("conv", 2e6, 4_000), ("dense", 8e6, 16_000)], batch=256)
        >>> net.parameters, net.flops
        (20000, 10000000.0)
        >>> cn.Workload.from_json(net.to_json()) == net
        True
    """

    name: str
    layers: tuple[LayerCost, ...]
    batch: int  # examples of the global batch
    device: str = ""  # on which the timings were taken
    dtype: str = "float32"
    slots: int = 0  # bytes that the optimizer keeps beside the parameters
    gradients: int | None = None  # bytes of all gradients; as many as the parameters by default
    update: float = 0.0  # seconds, on that device, of the update of all parameters
    input: int = 0  # bytes of an example
    cores: float | None = None  # that one device kept busy while it was timed, where devices share cores
    overhead: float = 0.0  # seconds of a step that no device can share: the loop around it
    addition: float = 0.0  # seconds, on that device, to add one device's gradients to another's
    pace: float = 1.0  # how many times as long as its figures say everything takes: a calibration
    fits_known: bool = True  # whether layers tell what they keep; if not, nobody can say whether it fits

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", tuple(self.layers) if isinstance(self.layers, Iterable) else ())
        check("Workload", _problems(self))

    def __hash__(self) -> int:
        """Kept, because planning asks for it often and many layers take their time."""
        if "_hash" not in self.__dict__:
            values = (getattr(self, field.name) for field in dataclass_fields(self))
            object.__setattr__(self, "_hash", hash(tuple(values)))
        return int(self.__dict__["_hash"])

    @property
    def parameters(self) -> int:
        """Bytes of all parameters."""
        if "_parameters" not in self.__dict__:
            object.__setattr__(self, "_parameters", sum(layer.parameters for layer in self.layers))
        return int(self.__dict__["_parameters"])

    @property
    def gradient_bytes(self) -> int:
        return self.parameters if self.gradients is None else self.gradients

    @property
    def flops(self) -> float:
        """Of one example's forward pass."""
        return sum(layer.flops for layer in self.layers)

    @property
    def timed(self) -> bool:
        """Whether every layer that does something was timed."""
        return all(layer.timings for layer in self.layers)

    def dense_gradient(self, layer: LayerCost) -> int:
        """Bytes of a layer's gradient, without what is sparse."""
        whole = self.parameters
        return (layer.parameters - layer.sparse) * self.gradient_bytes // whole if whole else 0

    def sparse_gradient(self, layer: LayerCost, rows: int) -> int:
        """Bytes of the rows that a slice of so many examples touches; at most all."""
        whole = self.parameters
        return min(layer.sparse * self.gradient_bytes // whole, rows * layer.rows) if whole else 0

    def with_batch(self, batch: int) -> "Workload":
        """The same model with another global batch."""
        return replace(self, batch=batch)

    def to_json(self) -> str:
        """As text that `from_json` reads."""
        return json.dumps({"version": VERSION, **asdict(self)})

    @classmethod
    def from_json(cls, text: str) -> "Workload":
        """What `to_json` wrote; all that is wrong with a text comes in one error."""
        where = "Workload.from_json()"
        plain = fields.loaded(text, where, VERSION)
        layers, wrong = fields.items(plain, "layers")
        check(
            where,
            [*fields.strangers(cls, plain), *wrong, *_strange_layers(layers), *fields.amiss(RULES, plain)],
        )
        return cls(**{**plain, "layers": tuple(map(_layer, layers))})

    @classmethod
    def of(
        cls, layers: Sequence[tuple[str, float, int] | LayerCost], *, batch: int, **more: Any
    ) -> "Workload":
        """From layers as (name, FLOPs of an example's forward pass, bytes of parameters), or `LayerCost`s.

        `more` are fields of `Workload`, such as `slots=`.
        """
        costs = [one if isinstance(one, LayerCost) else LayerCost(*one) for one in layers]
        return cls(**{"name": "workload", **more}, layers=tuple(costs), batch=batch)

    @classmethod
    def transformer(
        cls, *, hidden: int, layers: int, heads: int, sequence: int, vocabulary: int, batch: int, **more: Any
    ) -> "Workload":
        """A decoder of published sizes with Adam; see `describe.published`.

        `dtype="float16"`, the default, is mixed precision with parameters in 16 bits, a copy in 32 with the
        optimizer; `"mixed_float16"` has parameters in 32 bits, as Keras does; `"float32"` has all in 32.

        >>> import colonnade as cn
        >>> sizes = {"hidden": 1024, "layers": 24, "heads": 16, "sequence": 1024, "vocabulary": 51200}
        >>> cn.Workload.transformer(**sizes, batch=8).parameters // 2  # in 16 bits
        354418688
        """
        dtype = more.get("dtype", "float16")
        costs = published.transformer(hidden, layers, heads, sequence, vocabulary, dtype)
        bytes_each = published.width_of(dtype)
        count = sum(cost.parameters for cost in costs) // bytes_each.parameter
        known = {"name": f"transformer {hidden}x{layers}", "dtype": dtype, "slots": bytes_each.adam * count}
        return cls(layers=tuple(costs), batch=batch, **{**known, **more})

    @classmethod
    def convnet(
        cls,
        *,
        parameters: int,
        flops: float,
        batch: int,
        dense: float = 0.0,
        activations: int | None = None,
        optimizer: str = "momentum",
        **more: Any,
    ) -> "Workload":
        """A convolutional network of published size.

        Args:
            parameters: how many.
            flops: of one example's forward pass.
            batch: examples of the global batch.
            dense: the part of the parameters that is in dense layers.
            activations: bytes that one example keeps until the backward pass; left out, nothing is said of
                whether it fits.
            optimizer: sgd, momentum, rmsprop or adam, which keeps 0, 1, 1 or 2 numbers beside a parameter.
            more: other fields.
        """
        dtype = more.get("dtype", "float32")
        costs = published.convnet(parameters, flops, dense, activations, optimizer, dtype)
        kept = published.SLOTS[optimizer] * sum(cost.parameters for cost in costs)
        known = {"name": "convnet", "slots": kept, "fits_known": activations is not None}
        return cls(layers=tuple(costs), batch=batch, **{**known, **more})


def _problems(workload: Workload) -> Iterator[Problem]:
    yield from fields.amiss(RULES, vars(workload))
    if not workload.layers:
        yield Problem("layers", (), "must hold at least one layer", FIX)
    for i, layer in enumerate(workload.layers):
        at = f"layers[{i}]."
        if not isinstance(layer, LayerCost):
            yield Problem(f"layers[{i}]", fields.shown(layer), "must be a LayerCost", FIX)
            continue
        yield from fields.amiss(LAYER_RULES, vars(layer), at)
        yield from _timing_problems(layer.timings, at)
        yield from piece_problems(layer, at)
        if layer.exchanged and not layer.exchanges:
            rule = "is 0, and what is exchanged goes in at least one message"
            yield Problem(f"{at}exchanges", layer.exchanges, rule, "Use 1")
        pairs = (
            ("unsplit", "activations"),
            ("cheap", "activations"),
            ("cheap_flops", "flops"),
            ("sparse", "parameters"),
        )
        for part, of in pairs:
            small, large = getattr(layer, part), getattr(layer, of)
            if fields.number(small) and fields.number(large) and small > large:
                yield Problem(
                    f"{at}{part}", small, f"is a part of {of}, which is {large}", f"Use at most {large}"
                )


def _timing_problems(timings: Sequence[Any], at: str) -> Iterator[Problem]:
    if not all(isinstance(timing, Timing) for timing in timings):
        yield Problem(f"{at}timings", fields.shown(timings), "must be a list of Timing", FIX)
        return
    for j, timing in enumerate(timings):
        yield from fields.amiss(TIMING_RULES, vars(timing), f"{at}timings[{j}].")
    sizes = [timing.batch for timing in timings]
    if len(sizes) > 2 or len(set(map(str, sizes))) < len(sizes):
        rule = "must be taken at one batch size, or at two that differ"
        yield Problem(f"{at}timings", sizes, rule, "Keep the smallest and the largest")


def _strange_layers(layers: Sequence[Any]) -> Iterator[Problem]:
    for i, layer in enumerate(layers):
        at = f"layers[{i}]."
        wrong = list(fields.strangers(LayerCost, layer, at))
        yield from wrong
        if not isinstance(layer, dict):
            continue
        if not isinstance(layer.get("pieces", []), list):
            yield Problem(f"{at}pieces", fields.shown(layer["pieces"]), "must be a list", FIX)
        if not isinstance(layer.get("timings", []), list):
            yield Problem(f"{at}timings", fields.shown(layer["timings"]), "must be a list", FIX)
            continue
        for j, timing in enumerate(layer.get("timings", [])):
            yield from fields.strangers(Timing, timing, f"{at}timings[{j}].")


def _layer(plain: dict[str, Any]) -> LayerCost:
    return LayerCost(**{**plain, "timings": tuple(Timing(**timing) for timing in plain.get("timings", ()))})
