"""Loads a function by its name, `module:function`, with an example batch, for the command line."""

import importlib
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches
from types import ModuleType
from typing import Any

import numpy as np
import tensorflow as tf

from colonnade.errors import AlreadyStarted, ColonnadeError, InvalidArgument, Problem
from colonnade.hardware import devices as hardware
from colonnade.run.parallel.verify import verify
from colonnade.run.parallel.verify_report import Report
from colonnade.run.trace.ops import is_users

WHERE = "verify"
# Dims other than the batch that a signature leaves open.
OPEN_DIM = 8


@dataclass(frozen=True)
class Loaded:
    """A function and what to call it with."""

    fn: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)


def verify_by_name(name: str, *, devices: int, join: str = "concat", example: str | None = None) -> Report:
    """`cn.verify` of a function that is named on the command line.

    Where no cards are visible, the CPU is divided into that many virtual devices; that comes first,
    because TensorFlow's devices are settled when the user's module makes its first tensor.
    """
    hardware.setup(virtual=None if hardware.visible_cards() else devices)
    loaded = load(name, example, rows=4 * devices + 1)
    with _blamed(name, "calling it with the example failed", "Call it once by itself, on one device"):
        return verify(loaded.fn, *loaded.args, devices=devices, join=join, **loaded.kwargs)


def load(name: str, example: str | None = None, *, rows: int = 9) -> Loaded:
    """Import a function from the current directory, with its example batch.

    Args:
        name: `module:function`.
        example: the name in the module of a tuple of arguments, a dict of keyword arguments, or a
            function that returns either; `<function>_example` by default. Where there is none, inputs
            for a `tf.function` with an `input_signature` are drawn at random.
        rows: the size of a batch that is drawn at random.
    """
    module_name, _, attribute = name.partition(":")
    if not (module_name and attribute.isidentifier()):
        raise _mistake("function", name, "must be module:function", "For example: train:loss")
    module = _module(module_name, name)
    if not hasattr(module, attribute):
        known = [key for key, value in vars(module).items() if callable(value) and key[0] != "_"]
        close = get_close_matches(attribute, known, n=3, cutoff=0.4) or known
        fix = f"It has: {', '.join(close)}" if close else "Define it at the top level of the module"
        raise _mistake("function", name, f"{module_name} has no {attribute!r}", fix)
    fn = getattr(module, attribute)
    if not callable(fn):
        raise _mistake("function", name, f"is a {type(fn).__name__}, not a function", "Name a function")
    return _with_example(fn, module, attribute, example, rows)


def _module(module_name: str, name: str) -> ModuleType:
    if module_name.endswith(".py") or os.sep in module_name:
        dotted = module_name.removesuffix(".py").strip("./").replace(os.sep, ".")
        fix = f"Write {dotted}:{name.partition(':')[2]}"
        raise _mistake("function", name, f"{module_name} is a file; a module has no suffix", fix)
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    fix = f"To see where: python -c 'import {module_name}'"
    with _blamed(name, f"importing {module_name} failed", fix):
        try:
            return importlib.import_module(module_name)
        except ModuleNotFoundError as missing:
            if missing.name is None or not f"{module_name}.".startswith(f"{missing.name}."):
                raise
            rule = f"there is no module {missing.name!r} in {os.getcwd()} or among the installed packages"
            raise _mistake("function", name, rule, "Run it in the folder of the module") from None
        except AlreadyStarted:
            rule = f"{module_name} starts TensorFlow's devices in another way when it is imported"
            fix = "Put its cn.setup(...) under: if __name__ == '__main__'"
            raise _mistake("function", name, rule, fix) from None


def _with_example(
    fn: Callable[..., Any], module: ModuleType, attribute: str, example: str | None, rows: int
) -> Loaded:
    wanted = example or f"{attribute}_example"
    if hasattr(module, wanted):
        return _from_example(fn, getattr(module, wanted), wanted)
    signature = getattr(fn, "input_signature", None)
    if example is None and signature is not None:
        return Loaded(fn, _drawn(signature, attribute, rows))
    rule = f"{module.__name__} has no {wanted!r}" + (
        "" if example else f", and {attribute} is no tf.function with an input_signature"
    )
    fix = f"Define a batch in the module: {wanted} = (x, y), or a function that returns it"
    raise _mistake("example", wanted, rule, fix)


def _from_example(fn: Callable[..., Any], value: Any, wanted: str) -> Loaded:
    if callable(value):
        with _blamed(wanted, "calling it failed", "It is called without arguments", argument="example"):
            value = value()
    if isinstance(value, tuple):
        return Loaded(fn, args=value)
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return Loaded(fn, kwargs=value)
    rule = f"is a {type(value).__name__}; it must be a tuple of arguments or a dict of keyword arguments"
    raise _mistake("example", wanted, rule, f"For one argument: {wanted} = (x,)")


def _drawn(signature: Any, attribute: str, rows: int) -> tuple[Any, ...]:
    """Random inputs for a signature; integers are 0 or 1, which most functions take for a label or an id."""
    problems = [problem for spec in tf.nest.flatten(signature) for problem in _undrawable(spec, attribute)]
    if problems:
        raise InvalidArgument(WHERE, problems)
    rng = np.random.default_rng(0)

    def draw(spec: tf.TensorSpec) -> tf.Tensor:
        shape = [rows if i == 0 else size or OPEN_DIM for i, size in enumerate(spec.shape)]
        if spec.dtype == tf.string:
            return tf.strings.as_string(rng.integers(0, 2, shape))
        values = rng.normal(size=shape) if _is_real(spec.dtype) else rng.integers(0, 2, shape)
        return tf.cast(values, spec.dtype)

    return tuple(tf.nest.map_structure(draw, signature))


def _undrawable(spec: Any, attribute: str) -> Iterator[Problem]:
    fix = f"Define a batch in the module: {attribute}_example"
    if not isinstance(spec, tf.TensorSpec) or spec.shape.rank is None:
        yield Problem("input_signature", spec, "nothing can be drawn at random for it", fix)
    elif spec.shape.rank and spec.shape[0] is not None:
        rule = f"fixes the batch at {spec.shape[0]} rows, so a slice does not fit it"
        yield Problem("input_signature", spec, rule, "Make its first dim None")


def _is_real(dtype: Any) -> bool:
    return dtype.is_floating or dtype.is_complex


@contextmanager
def _blamed(value: str, rule: str, fix: str, argument: str = "function") -> Iterator[None]:
    """Turn what the user's code raises into a mistake that names it, with the line where it arose.

    An exit counts too: its code would be read as a verdict.
    """
    try:
        yield
    except ColonnadeError:
        raise
    except (Exception, SystemExit) as error:
        frames = [f for f in traceback.extract_tb(error.__traceback__) if is_users(f.filename)]
        where = f" (at {frames[-1].filename}:{frames[-1].lineno})" if frames else ""
        said = f"{type(error).__name__}: {error}".strip().rstrip(".:")
        raise _mistake(argument, value, f"{rule}: {said}{where}", fix) from None


def _mistake(argument: str, value: object, rule: str, fix: str) -> InvalidArgument:
    return InvalidArgument(WHERE, [Problem(argument, value, rule, fix)])
