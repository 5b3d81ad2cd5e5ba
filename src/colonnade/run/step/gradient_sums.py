"""Adds up the gradients of all slices, dense and sparse; `engine.gradients` divides by the weights."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from colonnade.errors import Problem
from colonnade.run.move.reduce import add
from colonnade.run.step.gradient_rows import DENSE, FOLDED, MIXED, ONCE, OWN, SAME, Form
from colonnade.run.step.objective import Objective, Share

# For a parameter: None if its gradients are added as they are; `dense` if they are made dense before; the
# kinds of their pieces if these are added one by one.
Recipe = None | str | tuple[str, ...]
Totals = list[list[Any]]  # sums of gradients: for each piece, for each parameter


def recipes(
    traces: Sequence[Objective], counts: Sequence[int], whole: Callable[[], Objective]
) -> tuple[list[Recipe], list[Problem]]:
    """For each parameter how to add up the gradients of slices, and what stands in the way.

    Args:
        traces: one for each slice.
        counts: the sizes of the slices.
        whole: traces the whole batch, as one device does it; not called where there is one slice.
    """
    chosen: list[Recipe] = []
    problems: list[Problem] = []
    if len(traces) == 1:
        return [None] * len(traces[0].parameters), problems
    # What is traced may depend on the size of a batch, also where it does not on those of its slices.
    one_device = whole()
    for i, parameter in enumerate(traces[0].parameters):
        forms = [t.forms[i] for t in (*traces, one_device) if t.forms[i] is not None]
        if _plain(forms):
            chosen.append(None)
            continue
        problems += _problems(parameter.name, forms, counts)
        chosen.append(_recipe(forms))
    return chosen, problems


def _plain(forms: Sequence[Form]) -> bool:
    """Whether all are dense, or have no rows but those of examples."""
    return set(forms) <= {DENSE} or all(form != DENSE and set(_kinds(form)) == {OWN} for form in forms)


def _recipe(forms: Sequence[Form]) -> Recipe:
    if len({_kinds(form) for form in forms}) > 1:
        return DENSE
    columns = zip(*(form for form in forms if isinstance(form, tuple)), strict=True)
    # Rows that do not come from the batch may still be made once for each example.
    return tuple(
        OWN if column[0].kind == SAME and len({piece.shape for piece in column}) > 1 else column[0].kind
        for column in columns
    )


def _problems(name: str, forms: Sequence[Form], counts: Sequence[int]) -> Iterator[Problem]:
    """Why the sum of gradients cannot be what one device has, whose form is the last."""
    fix = "Look it up in the loss function itself, not in a tf.function or a branch"
    if any(isinstance(form, tuple) and MIXED in _kinds(form) for form in forms):
        rule = "is looked up in several ways inside a tf.function or a branch, some of them at fixed rows"
        yield Problem("variable", name, rule, fix)
    elif any(isinstance(form, tuple) and FOLDED in _kinds(form) for form in forms):
        yield folded(name)
    elif len({_kinds(form) for form in forms}) > 1 and OWN in _kinds(forms[-1]):
        rule = f"has a gradient of other rows for slices of {_listed(counts)} than for {sum(counts)}, as one "
        rule += "device has it, so that an optimizer would see other rows"
        yield Problem("variable", name, rule, "Look it up in one way, whatever the size of the slice")


def folded(name: str) -> Problem:
    """Of a table that is looked up at what is made of distinct rows."""
    rule = (
        "is looked up at rows made of distinct ids (tf.unique) that may be equal again, of which slices have "
    )
    rule += "others than the whole batch, so that an optimizer would see other rows"
    return Problem("variable", name, rule, "Make the rows of the ids first, and take tf.unique of them last")


def _listed(counts: Sequence[int]) -> str:
    return " and ".join(str(count) for count in dict.fromkeys(counts))


def _kinds(form: Form) -> Any:
    return tuple(piece.kind for piece in form) if isinstance(form, tuple) else form


def cut(gradient: Any, sizes: Sequence[Any] | None, recipe: Recipe) -> list[Any]:
    """What is added up by itself of a gradient: each of its pieces, or all of it."""
    if gradient is None or recipe is None or len(recipe) == 1:
        return [gradient]
    if not isinstance(recipe, tuple):
        return [tf.convert_to_tensor(gradient)]
    assert sizes is not None
    values, indices = tf.split(gradient.values, sizes), tf.split(gradient.indices, sizes)
    return [tf.IndexedSlices(v, i, gradient.dense_shape) for v, i in zip(values, indices, strict=True)]


def totals_of(
    shares: Sequence[Share], how: Sequence[Recipe], reduced: Callable[[Any], list[list[Any]]]
) -> list[Totals]:
    """The sums of gradients over the workers, for each copy of the variables.

    `reduced` adds up the rows of all workers, once for each copy (see `sync.workers`).
    """
    rows = [[cut(*each) for each in zip(s.gradients, s.sizes, how, strict=True)] for s in shares]
    depth = max(len(recipe) if isinstance(recipe, tuple) else 1 for recipe in how)
    layers = [[[(*parts, *[None] * depth)[k] for parts in row] for row in rows] for k in range(depth)]
    by_layer = [reduced(layer) for layer in layers]
    num_copies = max(len(copies) for copies in by_layer)
    nothing = [None] * len(how)  # has arrived at a copy
    full = [[*copies, *[nothing] * (num_copies - len(copies))] for copies in by_layer]
    return [list(totals) for totals in zip(*full, strict=True)]


def joined(totals: Sequence[Any], recipe: Recipe, num_slices: int) -> tuple[Any, list[Any] | None]:
    """The sum of gradients from the sums of what `cut` gave, and the sizes of its pieces.

    There may be more of `totals`: what other gradients have that were cut into more pieces.
    """
    if not isinstance(recipe, tuple) or totals[0] is None:
        return totals[0], None
    pieces = [_merged(total, kind, num_slices) for total, kind in zip(totals, recipe, strict=False)]
    return add(pieces), [tf.size(piece.indices) for piece in pieces]


def _merged(rows: Any, kind: str, num_slices: int) -> Any:
    """The rows of all slices, one after the other, made those of the whole batch."""
    if kind == OWN:
        return rows
    if kind == ONCE:
        indices, places = tf.unique(rows.indices)
        values = tf.math.unsorted_segment_sum(rows.values, places, tf.size(indices))
        return tf.IndexedSlices(values, indices, rows.dense_shape)
    each = tf.size(rows.indices) // num_slices
    shape = tf.concat([[num_slices, each], tf.shape(rows.values)[1:]], axis=0)
    values = tf.reduce_sum(tf.reshape(rows.values, shape), axis=0)
    return tf.IndexedSlices(values, rows.indices[:each], rows.dense_shape)
