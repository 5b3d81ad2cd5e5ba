"""Which ops of a trace the user's own code made, and which a library did that it calls."""

import traceback
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import tensorflow as tf

from colonnade.run.trace.captures import nodes

# Ops whose effect a person sees: a print, a summary, a failed assertion.
SPEAKING = ("PrintV2", "Assert", "WriteSummary", "WriteScalarSummary", "WriteRawProtoSummary")
# What TensorFlow puts around functions of its own.
WRAPPERS = ("error_handler", "op_dispatch_handler", "wrapper", "wrapped", "new_func")
_COLONNADE = str(Path(__file__).parent.parent.parent)
_LIBRARIES = tuple(str(Path(module.__file__).parent) for module in (tf, traceback) if module.__file__)


def is_users(filename: str) -> bool:
    """Whether a file belongs to neither TensorFlow, Keras, AutoGraph, the standard library nor Colonnade."""
    others = (_COLONNADE, "<", *_LIBRARIES)
    return not (filename.startswith(others) or "site-packages" in filename or "__autograph_" in filename)


def speaks(graph: Any) -> bool:
    """Whether the user's code prints, asserts or writes summaries in a graph.

    TensorFlow and Keras assert much by themselves where they do not know a dim; that does not count.
    """
    definition = graph.as_graph_def()
    if not any(node.op in SPEAKING for node in nodes(definition)):
        return False
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
