"""Refuses variables that cannot be trained as they are, each by its name."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from colonnade.errors import Problem
from colonnade.run.step.objective import Objective
from colonnade.run.trace.keras_owner import keras_variable, keras_variables
from colonnade.run.trace.traced import Traced


def complex_numbers(traced: Objective) -> Iterator[Problem]:
    """Variables that are trained or changed: no optimizer of Keras, and no mean here, knows complex ones."""
    for variable in dict.fromkeys(v.ref() for v in (*traced.parameters, *traced.written)):
        if variable.deref().dtype.is_complex:
            fix = "Keep two real variables, and put them together by tf.complex(real, imaginary)"
            yield Problem("variable", variable.deref().name, "is complex; only real ones are trained", fix)


def without_path(optimizer: Any, parameters: Sequence[tf.Variable]) -> Iterator[Problem]:
    """Muon chooses by the path of a variable what to do with it, and only Keras variables have one."""
    if isinstance(getattr(optimizer, "inner_optimizer", optimizer), keras.optimizers.Muon):
        for name in [parameter.name for parameter in parameters if keras_variable(parameter) is None]:
            rule = "is a tf.Variable, and Muon asks for Keras variables"
            yield Problem("variable", name, rule, "Make it a keras.Variable, or choose another optimizer")


def overwritten(parameters: Sequence[Any]) -> Iterator[Problem]:
    """Variables that have no gradient but a next value in its place, such as the scales of float8."""
    plain = [p.value if isinstance(p, keras.Variable) else p for p in parameters]
    for known in keras_variables(plain):
        if known is not None and known.overwrite_with_gradient:
            rule = "is given its next value in the place of a gradient (float8), and each slice has another"
            yield Problem("variable", known.path, rule, "Train it on one device (devices=1)")
            return


def split_by_width(traced: Traced) -> Iterator[Problem]:
    """Layers whose parts are on devices of their own: replicas have all their variables on one device."""
    parts = [v for v in traced.variables if re.search(r"_part_\d+(:0)?$", v.name)]
    if len({part.device for part in parts}) > 1:
        rule = (
            "is a part of a layer that is split by width, and each replica keeps all its variables together"
        )
        yield Problem("layer", parts[0].name, rule, "Use cn.Synchronous(), or a layer that is not split")
