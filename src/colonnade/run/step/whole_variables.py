"""Finds optimizers that look at a whole variable, which a variable in parts would not give them."""

from collections.abc import Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from colonnade.errors import Problem
from colonnade.run.step.update import inside
from colonnade.run.variables.part_offset import slice_of

# Optimizers whose step for an element depends on other elements of its variable.
OF_WHOLE_VARIABLES = (keras.optimizers.Adafactor, keras.optimizers.Lamb, keras.optimizers.Muon)


def looking(optimizer: Any, parameters: Sequence[tf.Variable]) -> Iterator[Problem]:
    """What looks at whole variables in an optimizer of parameters of which some are in parts."""
    cut = [p for p in parameters if (part := slice_of(p)) is not None and tuple(p.shape) != part.shape]
    if not cut:
        return
    rule = f"looks at a whole variable at once, and {cut[0].name} is a part of a layer that is split by width"
    for one in inside(optimizer):
        if isinstance(one, OF_WHOLE_VARIABLES):
            fix = "Use one that works by elements, such as Adam, or a layer that is not split"
            yield Problem("optimizer", type(one).__name__, rule, fix)
        if one.clipnorm:
            yield Problem("clipnorm", one.clipnorm, rule, "Choose global_clipnorm, or clipvalue")
