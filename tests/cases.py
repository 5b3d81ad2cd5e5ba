"""Random trainings: a model, an optimizer with its options, a way to run it, and the sizes of its batches.

Run as a program:

    cases.py 'Case(...)'             one case; its line is printed by a test that fails
    cases.py survey COUNT SEED       as many as that, and a line for each that differs
    cases.py smallest COUNT SEED     the smallest of them that differs, as Hypothesis finds it
"""

import sys
from dataclasses import dataclass, field
from typing import Any

from blocks import BLOCKS, NORMS, STATES
from hypothesis import strategies as st

HOMES = ("shared", "mirrored", "partitioned")
# Trainer step by step, Trainer.fit, cn.fit, a train_step of a model's own, a pipeline, local training joined
# after every step, by an outer optimizer or without, and asynchronous training on one device: all lockstep.
ENGINES = ("batch", "fit", "keras", "step", "pipeline", "local", "outer", "asynchronous")
OPTIMIZERS: dict[str, dict[str, list[Any]]] = {
    "SGD": {"momentum": [0.0, 0.9], "nesterov": [False, True]},
    "Adam": {"amsgrad": [False, True]},
    "AdamW": {},
    "RMSprop": {"momentum": [0.0, 0.5], "centered": [False, True]},
    "Adagrad": {},
    "Adadelta": {},
    "Adamax": {},
    "Nadam": {},
    "Ftrl": {"l1_regularization_strength": [0.0, 0.01]},
    "Lion": {},
    "Lamb": {},
    "Adafactor": {"relative_step": [True, False]},
}
# They take the direction of a gradient and not its size; behind a normalisation that may be all rounding.
NOISY = {"Lion", "Lamb", "Adafactor"}


@dataclass(frozen=True)
class Case:
    """A training; its repr is what the program takes."""

    blocks: tuple[str, ...] = ("dense",)
    optimizer: str = "SGD"
    options: dict[str, Any] = field(default_factory=dict)
    scaled: bool = False  # by a LossScaleOptimizer
    built: bool = True  # whether the optimizer is built beforehand
    regularised: bool = False
    engine: str = "batch"
    home: str = "shared"
    devices: int = 2
    sizes: tuple[int, ...] = (4, 4)
    seed: int = 0


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """No list is drawn from twice: else Hypothesis exchanges the draws, and half the cases are alike."""
    engine = draw(st.sampled_from(ENGINES))
    kinds = allowed(engine)
    few = [[*kinds], ["", *kinds], [""] * 5 * len(kinds) + kinds]
    blocks = tuple(name for names in few if (name := draw(st.sampled_from(names))))
    if {*blocks} >= NORMS:  # the reference takes whole batches for one kind, and slices for the other
        blocks = tuple(name for name in blocks if name != "norm")
    plain = engine in ("local", "outer")  # only there is a mean of updates the update by a mean
    names = [name for name in OPTIMIZERS if not (NORMS & {*blocks} and name in NOISY)]
    optimizer = "SGD" if plain else draw(st.sampled_from(names))
    options = draw(plain_options() if plain else all_options(optimizer))
    size, other = draw(st.sampled_from(range(1, 10))), draw(st.sampled_from([0] * 36 + [*range(1, 10)]))
    return Case(
        blocks=blocks,
        optimizer=optimizer,
        options=options,
        # A scale is one or the other: of a wrapper, or of the optimizer itself.
        scaled=not plain and not densified(options) and draw(st.sampled_from([False] * 3 + [True])),
        built=draw(st.sampled_from([True, True, False])),
        regularised=draw(st.booleans()),
        engine=engine,
        home=draw(st.sampled_from(HOMES)) if engine in ("batch", "fit", "keras") else "shared",
        devices=1 if engine == "asynchronous" else draw(st.sampled_from([2, 3, 4, 1])),
        sizes=(size, size, other) if other else (size, size),
        seed=draw(st.integers(0, 999)),
    )


def allowed(engine: str) -> list[str]:
    """The blocks of which this engine says that it equals one device, in so far as one can say so."""
    without: set[str] = set()
    if engine == "pipeline":  # micro-batches come one after the other: docs/pipeline.md
        without = {"norm", "spectral", *STATES}
    if engine in ("local", "outer"):  # replicas have variables of their own: docs/modes.md
        without = {"spectral", *NORMS, *STATES}
    if engine in ("fit", "keras", "step"):  # a count that does not say it is a sum: the proof refuses it
        without = {"examples"}
    return [name for name in BLOCKS if name not in without]


def densified(options: dict[str, Any]) -> bool:
    """Keras cannot add up sparse gradients, nor divide them."""
    return "gradient_accumulation_steps" in options or "loss_scale_factor" in options


@st.composite
def plain_options(draw: st.DrawFn) -> dict[str, Any]:
    return {"weight_decay": 0.1} if draw(st.sampled_from([0.0, 0.1])) else {}


@st.composite
def all_options(draw: st.DrawFn, optimizer: str) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for name, values in OPTIMIZERS[optimizer].items():
        if (value := draw(st.sampled_from(values))) != values[0]:
            options[name] = value
    if options.get("nesterov") and not options.get("momentum"):
        del options["nesterov"]
    if draw(st.sampled_from([0.0, 0.1])):
        options["weight_decay"] = 0.1
    average = draw(st.sampled_from(["", "", "kept", "put back"]))
    if average:
        options |= {"use_ema": True, "ema_momentum": 0.5}
    if average == "put back":
        options["ema_overwrite_frequency"] = 2
    clip = draw(st.sampled_from(["", "", "clipnorm", "clipvalue", "global_clipnorm"]))
    if clip:
        options[clip] = 0.05
    more = draw(st.sampled_from(["", "", "", "gradient_accumulation_steps", "loss_scale_factor"]))
    if more:
        options[more] = {"gradient_accumulation_steps": 2, "loss_scale_factor": 8.0}[more]
    return options


if __name__ == "__main__":
    import contest  # what it makes of cases is not that of a module named __main__

    contest.main(sys.argv[1:])
