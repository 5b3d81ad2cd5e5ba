"""The ops of a trace: which the user's own code made, which speak, draw numbers, or cannot be shared."""

import inspect
import re
import traceback
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import tensorflow as tf

from colonnade.run.trace.captures import captures
from colonnade.run.trace.replica_context import MARK

# Ops whose effect a person sees: a print, a summary, a failed assertion.
SPEAKING = ("PrintV2", "Assert", "WriteSummary", "WriteScalarSummary", "WriteRawProtoSummary")
# They draw random numbers: some by themselves, and those called Stateless from a seed that they are given.
RANDOM = (
    *("Random", "Rng", "Sampler", "Multinomial", "TruncatedNormal", "SampleDistorted", "NonDeterministic"),
    *("StatefulUniform", "StatefulStandardNormal"),
)
# What they make may be another thing at every call.
ERRATIC = (*RANDOM, "PyFunc")
# Code without a file that a person typed: `python -c`, a shell, a cell. Of others Python says <frozen ...>.
TYPED = ("<string>", "<stdin>", "<python-input", "<ipython-input")
# What TensorFlow puts around functions of its own.
WRAPPERS = ("error_handler", "op_dispatch_handler", "wrapper", "wrapped", "new_func")
IN_GRADIENT = re.compile(r"(^|/)gradient_tape/|_grad/")
_COLONNADE = str(Path(__file__).parent.parent.parent)
_LIBRARIES = tuple(str(Path(module.__file__).parent) for module in (tf, traceback) if module.__file__)


class GraphFacts:
    """What is to be known of a trace, from one look: TensorFlow writes a graph out anew for whoever asks."""

    def __init__(self, concrete: Any) -> None:
        graph = concrete.graph.as_graph_def()
        every = list(nodes(graph))
        self.captures = captures(concrete, graph)
        # Whether it has seeded legacy random ops: the seed is part of the op, the same on every replica.
        self.repeats = any(has_seed(node) for node in every)
        # Whether the user's code in it prints, asserts or writes summaries.
        self.speaks = any(node.op in SPEAKING for node in every) and _speaks(concrete.graph, graph)
        # Whether it calls a function with `jit_compile=True`, which reads variables of one device only.
        self.compiles = any("_XlaMustCompile" in n.attr and n.attr["_XlaMustCompile"].b for n in every)
        # Python code that it differentiates.
        self.tapes = [n.name for n in every if n.op == "EagerPyFunc" and IN_GRADIENT.search(n.name)]
        # Marks in functions that it calls.
        called = (node for function in graph.library.function for node in function.node_def)
        self.called_marks = [node.name for node in called if MARK in node.name]


def nodes(graph: Any) -> Iterator[Any]:
    """All nodes of a graph and of the functions in its library."""
    yield from graph.node
    for function in graph.library.function:
        yield from function.node_def


def has_seed(node: Any, not_of: int | None = None) -> bool:
    """Whether a node is a seeded legacy random op; with `not_of`, one of another graph's seed."""
    seeded = "seed2" in node.attr and (node.attr["seed"].i or node.attr["seed2"].i)
    return bool(seeded) and node.attr["seed"].i != not_of


def is_random(node: Any, functions: Mapping[str, Any]) -> bool:
    """Whether a node draws random numbers, be it from a seed, or calls a function that does."""
    return _is(node, RANDOM) or any(is_random(inner, functions) for inner in _inner(node, functions))


def draws(node: Any, functions: Mapping[str, Any]) -> bool:
    """Whether what a node makes is another thing on every replica, in itself or in a function that it calls.

    Of a seed that is the same everywhere, numbers are the same too.
    """
    own = _is(node, ERRATIC) and not node.op.startswith("Stateless")
    return own or any(draws(inner, functions) for inner in _inner(node, functions))


def _is(node: Any, kinds: tuple[str, ...]) -> bool:
    return any(kind in node.op for kind in kinds)


def _inner(node: Any, functions: Mapping[str, Any]) -> Iterator[Any]:
    for value in node.attr.values():
        for called in (value.func, *value.list.func):
            if called.name in functions:
                yield from functions[called.name].node_def


def is_users(filename: str) -> bool:
    """Whether a file belongs to neither TensorFlow, Keras, AutoGraph, the standard library nor Colonnade."""
    if filename.startswith(TYPED):
        return True
    others = (_COLONNADE, "<", *_LIBRARIES)
    return not (filename.startswith(others) or "site-packages" in filename or "__autograph_" in filename)


def calling_code() -> Any:
    """The code that has called into Colonnade, be it the user's or Keras's; TensorFlow wraps functions."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_filename.startswith((_COLONNADE, *_LIBRARIES[:1])):
        frame = frame.f_back
    return None if frame is None else frame.f_code


def _speaks(graph: Any, definition: Any) -> bool:
    """Whether the user's code prints, asserts or writes summaries in a graph in which something does.

    TensorFlow and Keras assert much by themselves where they do not know a dim; that does not count.
    """
    ops = [op for op in graph.get_operations() if _is_assertion(op) and not _is_users_assertion(op)]
    of_others = {op.name for op in ops}
    branches = {name for op in ops for name in _branches(op)}
    own = (node for node in definition.node if node.name not in of_others)
    functions = (f.node_def for f in definition.library.function if f.signature.name not in branches)
    return any(node.op in SPEAKING for node in chain(own, *functions))


def _is_assertion(op: Any) -> bool:
    return op.type == "Assert" or bool(list(_branches(op)))


def _branches(op: Any) -> Iterator[str]:
    """Of an assertion that puts together what it says only where it fails."""
    if op.type in ("If", "StatelessIf") and op.name.endswith("AssertGuard"):
        yield from (op.get_attr(name).name for name in ("then_branch", "else_branch"))


def _is_users_assertion(op: Any) -> bool:
    """Whether what the user's code called last was an assertion, and not something that asserts."""
    frames = list(op.traceback)
    last = max((i for i, frame in enumerate(frames) if is_users(frame.filename)), default=-1)
    called = next((frame.name for frame in frames[last + 1 :] if frame.name not in WRAPPERS), "")
    return called.lower().startswith("assert")
