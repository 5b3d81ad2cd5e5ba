"""What a pipeline is made of: the layers of a model, or functions, in order; and stages made of them."""

import inspect
import re
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from colonnade.errors import InvalidArgument, Problem, check

WHERE = "Pipeline()"


@dataclass(frozen=True)
class Stage:
    """Consecutive layers as one function: which values it takes and gives, by their keys."""

    name: str
    takes: tuple[Hashable, ...]
    gives: tuple[Hashable, ...]
    call: Callable[..., list[Any]]  # (list of values, training) -> list of values


class Chain:
    """Functions and Keras layers, each of which takes what the one before returns."""

    def __init__(self, functions: Sequence[Any]) -> None:
        self._functions = list(functions)
        self.names = [_name(fn, i) for i, fn in enumerate(functions)]
        self._flagged = [_takes_training(fn) for fn in functions]

    def taken(self, inputs: tuple[Any, ...]) -> dict[Hashable, Any]:
        """The values that are there at the start, by key."""
        return {0: inputs}

    def given(self, values: dict[Hashable, Any]) -> Any:
        """What the last layer returned."""
        return values[len(self._functions)]

    def stage(self, begin: int, end: int) -> Stage:
        functions, flagged = self._functions[begin:end], self._flagged[begin:end]

        # AutoGraph comes through here to the user's functions, so this is left to it.
        def call(values, training):  # type: ignore[no-untyped-def]
            (value,) = values
            args = value if begin == 0 else (value,)
            for fn, takes_training in zip(functions, flagged, strict=True):
                flags = {"training": training} if takes_training and training is not None else {}
                value = fn(*args, **flags)
                args = (value,)
            return [value]

        return Stage(", ".join(self.names[begin:end]), (begin,), (end,), call)


class Network:
    """A functional Keras model: a value goes from the layer that makes it to every one that takes it."""

    def __init__(self, model: Any) -> None:
        check(WHERE, _uncuttable(model))
        self._model = model
        self._layers = [op for op in model.operations if not isinstance(op, keras.layers.InputLayer)]
        self.names = [layer.name for layer in self._layers]
        self._tensors = {id(t): t for layer in self._layers for t in (*_inputs(layer), *_outputs(layer))}
        self._tensors |= {id(t): t for t in model.inputs}

    def taken(self, inputs: tuple[Any, ...]) -> dict[Hashable, Any]:
        flat = keras.tree.flatten(inputs[0] if len(inputs) == 1 else list(inputs))
        if len(flat) != len(self._model.inputs):
            rule = f"the model takes {len(self._model.inputs)} inputs"
            raise InvalidArgument("the pipeline", [Problem("inputs", len(flat), rule, "Pass all of them")])
        return {id(t): value for t, value in zip(self._model.inputs, flat, strict=True)}

    def given(self, values: dict[Hashable, Any]) -> Any:
        found = [values[id(t)] for t in self._model.outputs]
        return keras.tree.pack_sequence_as(self._model.output, found)

    def stage(self, begin: int, end: int) -> Stage:
        layers = self._layers[begin:end]
        made = {id(t) for layer in layers for t in _outputs(layer)}
        takes = dict.fromkeys(id(t) for layer in layers for t in _inputs(layer) if id(t) not in made)
        later = {id(t) for layer in self._layers[end:] for t in _inputs(layer)}
        later |= {id(t) for t in self._model.outputs}
        gives = [
            key for key in dict.fromkeys(id(t) for layer in layers for t in _outputs(layer)) if key in later
        ]
        function = keras.Function([self._tensors[k] for k in takes], [self._tensors[k] for k in gives])
        layer = _Layers(function)

        def call(values, training):  # type: ignore[no-untyped-def]
            return layer(values, training=training)

        return Stage(", ".join(self.names[begin:end]), tuple(takes), tuple(gives), call)


class _Layers(keras.layers.Layer):
    """A part of a functional model. Being a layer, it tells the layers inside whether they train."""

    def __init__(self, function: keras.Function) -> None:
        super().__init__(autocast=False, name="stage")
        self._function = function

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        return self._function(inputs)


def layers_of(stages: Any) -> Chain | Network:
    """The layers of what a user passes: a model, or a list of functions and layers."""
    if isinstance(stages, keras.Sequential):
        stages = stages.layers
    elif isinstance(stages, keras.Model):
        return Network(stages)
    check(WHERE, _problems(stages))
    return Chain(stages)


def misfit(stage: Stage, number: int, taken: Any, error: Exception) -> InvalidArgument:
    """A stage cannot be called with what it gets."""
    shapes = ", ".join(
        f"{leaf.dtype.name}{leaf.shape}" for leaf in tf.nest.flatten(taken) if hasattr(leaf, "shape")
    )
    source = f"what stage {number - 1} returns" if number else "the input of the pipeline"
    rule = f"cannot take {source}, {shapes}: {_said(error)}"
    fix = "Make the output of each stage the input of the next"
    return InvalidArgument("Pipeline()", [Problem(f"stage {number}", stage.name, rule, fix)])


def _said(error: Exception) -> str:
    """What an error says, without the frames that AutoGraph puts before it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    names = [i for i, line in enumerate(lines) if re.match(r"[A-Za-z.]*(Error|Exception): ", line)]
    told = (
        lines[names[-1] :] if names else [f"{type(error).__name__}: {lines[0] if lines else ''}", *lines[1:]]
    )
    # Keras says which layer it called first, and then why that failed.
    return " ".join(told[: 2 if "Exception encountered" in told[0] else 1]).rstrip(".")


def _problems(stages: Any) -> Iterator[Problem]:
    if not isinstance(stages, list | tuple):
        rule = "must be a list of functions or layers, a keras.Sequential or a functional model"
        yield Problem("stages", stages, rule, "Pass [first, second]")
        return
    if not stages:
        yield Problem("stages", stages, "holds no stage", "Pass at least one function or layer")
    for i, stage in enumerate(stages):
        if not callable(stage):
            yield Problem(
                f"stages[{i}]", stage, "is neither a function nor a layer", "Pass the function itself"
            )
        elif _masks(stage):
            yield Problem(f"stages[{i}]", stage.name, *_NO_MASKS)


_NO_MASKS = (
    "makes a mask, which does not pass from stage to stage",
    "Return the mask as a tensor beside the values, and use it in the stages",
)


def _masks(layer: Any) -> bool:
    return isinstance(layer, keras.layers.Masking) or bool(getattr(layer, "mask_zero", False))


def _uncuttable(model: Any) -> Iterator[Problem]:
    if not hasattr(model, "operations"):
        rule = "is a model with a call() of its own, whose layers cannot be told apart"
        yield Problem("stages", model.name, rule, "Pass its parts as a list of functions")
        return
    for layer in model.operations:
        if _masks(layer):
            yield Problem("stages", layer.name, *_NO_MASKS)
    for name in _called_twice(model):
        rule = "is called more than once, so it has not one place in the pipeline"
        yield Problem("stages", name, rule, "Pass the parts as a list of functions, and tied=[the layer]")


def _called_twice(model: Any) -> list[str]:
    """Layers whose calls cannot be told apart, because Keras tells the values of a first call only."""
    made = {id(t) for layer in model.operations for t in _outputs(layer)}
    takers = {layer.name: _inputs(layer) for layer in model.operations}
    strangers = [name for name, taken in takers.items() if any(id(t) not in made for t in taken)]
    if not strangers and all(id(t) in made for t in model.outputs):
        return []
    called = [layer["name"] for layer in model.get_config()["layers"] if len(layer["inbound_nodes"]) > 1]
    return called or strangers or list(model.output_names)


def _inputs(layer: Any) -> list[Any]:
    return list(keras.tree.flatten(layer.input))


def _outputs(layer: Any) -> list[Any]:
    return list(keras.tree.flatten(layer.output))


def _takes_training(fn: Any) -> bool:
    try:
        return "training" in inspect.signature(getattr(fn, "call", fn)).parameters
    except (TypeError, ValueError):  # some callables of extension modules have no signature
        return False


def _name(fn: Any, position: int) -> str:
    name = getattr(fn, "name", getattr(fn, "__name__", type(fn).__name__))
    return f"function {position}" if name == "<lambda>" else str(name)
