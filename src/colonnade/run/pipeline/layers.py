"""The layers of a model, or functions, in the order of a pipeline, and the stages made of them."""

import inspect
import re
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from colonnade.errors import ColonnadeError, InvalidArgument, Problem, check
from colonnade.run.trace.concrete import unconverted
from colonnade.run.trace.replica_context import TracingContext

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
        last = end == len(self._functions)

        # AutoGraph comes through here to the user's functions, so this is left to it.
        def call(values, training):  # type: ignore[no-untyped-def]
            (value,) = values
            args = value if begin == 0 else (value,)
            for i, (fn, takes_training) in enumerate(zip(functions, flagged, strict=True)):
                flags = {"training": training} if takes_training and training is not None else {}
                try:
                    value = fn(*args, **flags)
                except MISTAKES as error:
                    self._refuse(begin + i, args, error)
                args = (value,)
            if not last:
                refuse_masks([value], self.names[end - 1 : end])
            return [value]

        return Stage(", ".join(self.names[begin:end]), (begin,), (end,), call)

    @unconverted
    def _refuse(self, number: int, taken: Any, error: Exception) -> None:
        source = f"what stages[{number - 1}] returns" if number else "the input of the pipeline"
        raise refused(misfit(f"stages[{number}]", self.names[number], source, taken, error))


@dataclass(frozen=True)
class _Call:
    """A call of a layer in a functional model: arguments, symbols among them, and what it gives."""

    layer: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    gives: tuple[Any, ...]

    @property
    def name(self) -> str:
        return str(self.layer.name)

    @property
    def takes(self) -> tuple[Any, ...]:
        return _symbols((self.args, self.kwargs))

    def again(self, values: dict[int, Any], training: bool | None) -> None:
        """Call it with values in place of symbols, and keep what it gives among them."""

        def value(leaf: Any) -> Any:
            return values[id(leaf)] if isinstance(leaf, keras.KerasTensor) else leaf

        args, kwargs = keras.tree.map_structure(value, (self.args, self.kwargs))
        # The call that made the model noted the default of a Dropout: False. A model replaces it.
        if "training" in kwargs and training is not None:
            kwargs["training"] = training
        results = keras.tree.flatten(self.layer(*args, **kwargs))
        values.update(zip(map(id, self.gives), results, strict=True))


class Network:
    """A functional Keras model: a value goes from the layer that makes it to every one that takes it."""

    def __init__(self, model: Any) -> None:
        check(WHERE, _uncuttable(model))
        self._inputs, self._input = list(model.inputs), model.input
        self._calls, again = _calls_of(model)
        self._outputs, self._output = list(again.outputs), again.output
        self.names = [call.name for call in self._calls]

    def taken(self, inputs: tuple[Any, ...]) -> dict[Hashable, Any]:
        flat = self._flat(inputs[0] if len(inputs) == 1 else list(inputs))
        if len(flat) != len(self._inputs):
            rule = f"the model takes {len(self._inputs)} inputs"
            raise InvalidArgument("the pipeline", [Problem("inputs", len(flat), rule, "Pass all of them")])
        return {id(t): _as(t, value) for t, value in zip(self._inputs, flat, strict=True)}

    def _flat(self, inputs: Any) -> list[Any]:
        """The inputs in the order of the model's; Keras finds them in a dict by their names."""
        if not isinstance(inputs, dict) or isinstance(self._input, dict):
            return list(keras.tree.flatten(inputs))
        names = [tensor.name for tensor in self._inputs]
        missing = [name for name in names if name not in inputs]
        if missing:
            rule = f"the model's inputs are called {', '.join(names)}"
            raise InvalidArgument(
                "the pipeline", [Problem("inputs", list(inputs), rule, f"Pass {', '.join(missing)}")]
            )
        return [inputs[name] for name in names]

    def given(self, values: dict[Hashable, Any]) -> Any:
        results = [values[id(t)] for t in self._outputs]
        return keras.tree.pack_sequence_as(self._output, results)

    def stage(self, begin: int, end: int) -> Stage:
        calls, last = self._calls[begin:end], end == len(self._calls)
        made = {id(t): call.name for call in calls for t in call.gives}
        takes = dict.fromkeys(id(t) for call in calls for t in call.takes if id(t) not in made)
        later = {id(t) for call in self._calls[end:] for t in call.takes}
        later |= {id(t) for t in self._outputs}
        gives = [key for key in made if key in later]

        def called(inputs: Any, training: bool | None) -> list[Any]:
            values = dict(zip(takes, inputs, strict=True))
            for one in calls:
                one.again(values, training)
            return [values[key] for key in gives]

        layer = _Layers(called)

        def call(values, training):  # type: ignore[no-untyped-def]
            results = layer(values, training=training)
            if not last:
                refuse_masks(results, [made[key] for key in gives])
            return results

        return Stage(", ".join(self.names[begin:end]), tuple(takes), tuple(gives), call)


def _calls_of(model: Any) -> tuple[list[_Call], Any]:
    """Every call of a layer, in an order in which they can be made, and the model that they make.

    A layer itself tells the values of its first call only, and a nested model those inside it. So the
    same layers are called once more, on the model's own inputs, and every call is noted.
    """
    calls: list[_Call] = []

    def noted(layer: Any, *args: Any, **kwargs: Any) -> Any:
        results = layer(*args, **kwargs)
        calls.append(_Call(layer, args, kwargs, tuple(keras.tree.flatten(results))))
        return results

    again = keras.models.clone_model(
        model, input_tensors=model.input, clone_function=lambda layer: layer, call_function=noted
    )
    return calls, again


def _symbols(nest: Any) -> tuple[Any, ...]:
    return tuple(leaf for leaf in keras.tree.flatten(nest) if isinstance(leaf, keras.KerasTensor))


def _as(symbol: Any, value: Any) -> Any:
    """An input as the model takes it: Keras casts it."""
    if isinstance(value, tf.SparseTensor | tf.RaggedTensor):
        return value if value.dtype == symbol.dtype else tf.cast(value, symbol.dtype)
    return keras.ops.convert_to_tensor(value, dtype=symbol.dtype)


class _Layers(keras.layers.Layer):
    """Calls of layers. Being a layer, it tells those inside whether they train."""

    def __init__(self, calls: Callable[[Any, bool | None], list[Any]]) -> None:
        super().__init__(autocast=False, name="stage")
        self._calls = calls

    def call(self, inputs: Any, training: bool | None = None) -> list[Any]:
        return self._calls(inputs, training)


def layers_of(stages: Any) -> Chain | Network:
    """The layers of what a user passes: a model, or a list of functions and layers."""
    if isinstance(stages, keras.Sequential):
        stages = stages.layers
    elif isinstance(stages, keras.Model):
        return Network(stages)
    check(WHERE, _problems(stages))
    return Chain(stages)


# What a function raises that cannot be called with what it gets.
MISTAKES = (ValueError, TypeError, tf.errors.InvalidArgumentError)


def misfit(argument: str, name: str, source: str, taken: Any, error: Exception) -> ColonnadeError:
    """A layer, or a stage, cannot be called with what it gets."""
    if isinstance(error, ColonnadeError):
        return error
    shapes = ", ".join(
        f"{leaf.dtype.name}{leaf.shape}" for leaf in tf.nest.flatten(taken) if hasattr(leaf, "shape")
    )
    rule = f"cannot take {source}, {shapes}: {_said(error)}"
    fix = "Make the output of each stage the input of the next"
    return InvalidArgument(WHERE, [Problem(argument, name, rule, fix)])


def refused(mistake: ColonnadeError) -> ColonnadeError:
    """An error to raise, remembered by the trace that is being made: AutoGraph would dress it up."""
    context = tf.distribute.get_replica_context()
    if isinstance(context, TracingContext):
        context.mistakes.append(mistake)
    return mistake


@unconverted
def refuse_masks(values: Any, names: Sequence[str]) -> None:
    """Refuse values that leave a stage with a mask of Keras's, which the next stage would not see.

    The attribute is how Keras hands a mask from layer to layer.
    """
    masked = [
        name
        for name, value in zip(names, values, strict=True)
        if any(getattr(leaf, "_keras_mask", None) is not None for leaf in tf.nest.flatten(value))
    ]
    if masked:
        raise refused(InvalidArgument(WHERE, [Problem("stages", name, *_NO_MASKS) for name in masked]))


def _said(error: Exception) -> str:
    """What an error says, without the frames that AutoGraph puts before it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    names = [i for i, line in enumerate(lines) if re.match(r"[A-Za-z.]*(Error|Exception): ", line)]
    sentences = (
        lines[names[-1] :] if names else [f"{type(error).__name__}: {lines[0] if lines else ''}", *lines[1:]]
    )
    # Keras says which layer it called first, and then why that failed.
    return " ".join(sentences[: 2 if "Exception encountered" in sentences[0] else 1]).rstrip(".")


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


def _takes_training(fn: Any) -> bool:
    if isinstance(fn, keras.layers.Layer):  # whose call() may leave it to the layers inside
        return True
    try:
        return "training" in inspect.signature(fn).parameters
    except (TypeError, ValueError):  # some callables of extension modules have no signature
        return False


def _name(fn: Any, position: int) -> str:
    name = getattr(fn, "name", getattr(fn, "__name__", type(fn).__name__))
    return f"function {position}" if name == "<lambda>" else str(name)
