"""Regularisers and constraints on the weights of a layer that is split by width.

Each part of a weight gets them by itself. So the sum of a regulariser over the parts must be that of the
whole, and a constraint must make of a part what it makes of it in the whole; others are refused.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import keras
import numpy as np
import tensorflow as tf

from colonnade.errors import Problem

# They may have thresholds, so they are tried on numbers of all these sizes.
SCALES = (0.01, 0.1, 1.0, 10.0, 100.0, 1000.0)


@dataclass(frozen=True)
class Rules:
    """By the name of a weight: its regulariser and its constraint, or None."""

    regularizers: Mapping[str, Any]
    constraints: Mapping[str, Any]

    @classmethod
    def of(cls, *, regularizers: Mapping[str, Any], constraints: Mapping[str, Any]) -> Self:
        """From what Keras takes for them: names, configurations, functions."""
        return cls(
            {name: keras.regularizers.get(rule) for name, rule in regularizers.items()},
            {name: keras.constraints.get(rule) for name, rule in constraints.items()},
        )

    def problems(self, axes: Mapping[str, int | None]) -> Iterator[Problem]:
        """Those that parts cannot have; `axes` tells by weight along which axis it is split, or None."""
        for kind, rules, same in (
            ("regularizer", self.regularizers, _adds_up),
            ("constraint", self.constraints, _same),
        ):
            for name, rule in rules.items():
                axis, rank = axes[name], 1 if name == "bias" else 2
                if rule is not None and axis is not None and not _tried(rule, same, rank, axis):
                    said = getattr(rule, "__name__", type(rule).__name__)
                    needs = "needs the whole variable, and a device has only a part of it"
                    fix = "Choose one of single elements, or another split; or use penalty= of the trainer"
                    yield Problem(f"{name}_{kind}", said, needs, fix)

    def of_weight(self, name: str) -> dict[str, Any]:
        """What `add_weight` takes."""
        return {"regularizer": self.regularizers[name], "constraint": self.constraints[name]}

    def config(self) -> dict[str, Any]:
        return {
            **{f"{n}_regularizer": keras.regularizers.serialize(r) for n, r in self.regularizers.items()},
            **{f"{n}_constraint": keras.constraints.serialize(c) for n, c in self.constraints.items()},
        }


def _tried(rule: Any, same: Callable[[Any, Any, Sequence[Any], int], bool], rank: int, axis: int) -> bool:
    """Whether it does the same to a weight, whole or in two parts: no name tells that of a function."""
    rng = np.random.default_rng(0)
    with tf.init_scope(), tf.device("/device:CPU:0"):
        for scale in SCALES:
            whole = tf.constant(rng.normal(size=[6] * rank, scale=scale), tf.float32)
            try:
                if not same(rule, whole, tf.split(whole, [4, 2], axis=axis), axis):
                    return False
            except (ValueError, TypeError, tf.errors.InvalidArgumentError):  # it cannot take another shape
                return False
    return True


def _adds_up(regularizer: Any, whole: Any, parts: Sequence[Any], axis: int) -> bool:
    summed = sum(float(regularizer(part)) for part in parts)
    return bool(np.isclose(summed, float(regularizer(whole)), rtol=1e-4))


def _same(constraint: Any, whole: Any, parts: Sequence[Any], axis: int) -> bool:
    in_parts = np.concatenate([np.asarray(constraint(part)) for part in parts], axis)
    return bool(np.allclose(in_parts, np.asarray(constraint(whole)), rtol=1e-4))
