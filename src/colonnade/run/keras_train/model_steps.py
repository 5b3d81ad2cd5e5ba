"""The steps that Keras calls in place of its own, made for a model and for how it is to be trained."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import keras
import tensorflow as tf
from rich.console import Console

from colonnade.errors import Problem
from colonnade.hardware import devices as hardware
from colonnade.hardware.clusters.joining import joined, machines
from colonnade.run.engine.protocols import Sync, home, sync_problems
from colonnade.run.keras_steps.forward import Asked, nothing_lent
from colonnade.run.keras_steps.group_step import CutOrWhole, GroupStep
from colonnade.run.keras_steps.jit_compile import jit_problems
from colonnade.run.keras_steps.keras_losses import of_slices
from colonnade.run.keras_steps.keras_step import KerasStep
from colonnade.run.keras_steps.own_step import OwnStep
from colonnade.run.keras_steps.predict_step import PredictStep, PredictWhole
from colonnade.run.keras_steps.score_step import ScoreStep
from colonnade.run.keras_steps.split_inputs import SplitInputs, split_problems
from colonnade.run.machines.peers import Peers, peers_of
from colonnade.run.model.kept_step import keep, kept
from colonnade.run.model.training_step import has_own
from colonnade.run.parallel.parallel import Devices
from colonnade.run.prove.verdict import Prover, of_prove
from colonnade.run.sync.lockstep import Synchronous
from colonnade.run.train.checks import of_machines


@dataclass(frozen=True)
class How:
    """How a model is to be trained: what the user said, and the devices that this means."""

    where: str  # what the user called
    devices: tuple[str, ...]
    sync: Any
    variables: Any
    prove: Any
    split: Any
    per_device: Any

    @classmethod
    def chosen(
        cls,
        where: str,
        devices: Devices,
        sync: Sync | None,
        variables: Any,
        prove: Any,
        split: Sequence[str | int] | None = None,
        *,
        per_device: Any = False,
    ) -> "How":
        """As the user said it, to whoever asks."""
        chosen = hardware.resolve(devices, where)
        sync = Synchronous() if sync is None else sync
        return cls(where, chosen, sync, variables, prove, split, per_device)

    def problems_without_training(self, model: Any, function: str) -> Iterator[Problem]:
        """What is wrong with it, or with the model, where Keras calls the `test_function` or such."""
        yield from of_prove(self.prove)
        yield from _of_inputs(self.split, self.per_device, self.sync, self.variables)
        if not isinstance(model, keras.Model):
            yield Problem(
                "model", type(model).__name__, "must be a Keras model", "Use cn.parallel for functions"
            )
            return
        if function == "test" and not model.compiled:
            yield Problem("model", model.name, "is not compiled", "Call model.compile(optimizer, loss) first")
        if model.compiled and model.run_eagerly:
            yield Problem("model", model.name, "is compiled with run_eagerly=True", "Compile it without")
        if has_own(model, f"make_{function}_function"):
            rule = f"has a make_{function}_function of its own, which {self.where} would take the place of"
            yield Problem("model", model.name, rule, f"Override {function}_step instead")

    def problems(self, model: Any) -> Iterator[Problem]:
        """What is wrong with it, or with the model, for a training."""
        yield from sync_problems(self.sync, self.variables, len(self.devices))
        yield from _problems(model, self.sync, len(self.devices))
        yield from of_prove(self.prove)
        yield from _of_inputs(self.split, self.per_device, self.sync, self.variables)
        yield from _of_machines(model, self.sync, self.split, self.per_device)
        if isinstance(model, keras.Model) and model.compiled:
            several = joined() is not None
            yield from jit_problems(model, self.sync, per_device=self.per_device is True, several=several)

    @property
    def home(self) -> str:
        """Where variables live."""
        return home(self.sync, self.variables, self.devices)

    @cached_property
    def peers(self) -> Peers:
        """The machines that train together."""
        return peers_of(self.devices, self.where)

    @property
    def cut(self) -> SplitInputs:
        return SplitInputs(None if self.split is None else tuple(self.split))

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for trainings that the same step serves."""
        return self.devices, self.sync, self.home, self.prove, self.cut, self.per_device

    @property
    def key_without_training(self) -> tuple[Any, ...]:
        """Equal for evaluations that the same step serves."""
        return self.devices, self.prove, self.cut, self.per_device

    @property
    def at_a_time(self) -> int:
        """How many batches a step takes, of each that Keras would give to its own."""
        return len(self.devices) if self.per_device else 1


class ModelSteps:
    """What Keras calls for batches in place of its own: what was used before, if it fits, or what is made.

    Args:
        model: the model.
        how: how it is to be trained or evaluated.
        say: prints a line.
        validates: whether it is evaluated in the middle of a training, where Keras writes on the same line.
    """

    def __init__(
        self, model: keras.Model, how: How, say: Callable[[str], Any], *, validates: bool = False
    ) -> None:
        self._model, self._how, self._say = model, how, say
        self._say_of_test = silent if validates else say

    @cached_property
    def train(self) -> Any:
        """For batches to train on."""
        known = kept(self._model, "train", self._how.key)
        return self._train() if known is None else known

    @cached_property
    def test(self) -> Any:
        """For batches to evaluate; None where the model makes such a function itself."""
        if has_own(self._model, "make_test_function"):
            return None
        known = kept(self._model, "test", self._how.key_without_training)
        return self._test() if known is None else known

    @cached_property
    def predict(self) -> Any:
        """For lists of batches to predict."""
        known = kept(self._model, "predict", self._how.key_without_training)
        return self._predict() if known is None else known

    def keep(self) -> None:
        """After they were used: to be used again."""
        for kind in ("train", "test", "predict"):
            step = vars(self).get(kind)
            if step is not None:
                key = self._how.key if kind == "train" else self._how.key_without_training
                # Whoever looked at the model meanwhile may have made, and used, another one.
                known = kept(self._model, kind, key)
                keep(self._model, kind, key, step if known is None else known)

    def _train(self) -> Any:
        how, model = self._how, self._model
        whole = GroupStep(model, model.train_step, how.devices)
        if how.per_device:
            return whole
        prover = Prover(how.prove, how.where, self._say)
        step = (
            OwnStep(model, model.train_step, how.devices, prover, how.cut)
            if has_own(model, "train_step")
            else KerasStep(model, how.devices, how.sync, how.home, prover, how.cut, how.peers)
        )
        cuts = how.peers.several or len(how.devices) > 1 or how.split is not None
        return step if cuts else CutOrWhole(step, whole)

    def _test(self) -> Any:
        how, model = self._how, self._model
        whole = GroupStep(model, model.test_step, how.devices)
        if how.per_device:
            return whole
        prover = Prover(how.prove, how.where, self._say_of_test, "test_step")
        train = vars(self).get("train")
        lends = train.lends if isinstance(train, KerasStep) else nothing_lent
        step = (
            OwnStep(model, model.test_step, how.devices, prover, how.cut)
            if has_own(model, "test_step")
            else ScoreStep(model, how.devices, how.cut, Asked(how.where, model.name, prover, lends))
        )
        return step if len(how.devices) > 1 or how.split is not None else CutOrWhole(step, whole)

    def _predict(self) -> Any:
        how, model = self._how, self._model
        if how.per_device:
            return PredictWhole(model, how.devices)
        prover = Prover(how.prove, how.where, self._say, "predict_step")
        return PredictStep(model, how.devices, how.cut, Asked(how.where, model.name, prover))


def saying(verbose: Any) -> Callable[[str], Any]:
    """Prints lines of a call with such a `verbose`; one of several machines says what all do."""
    console = Console(quiet=not verbose or not machines().is_first)
    return partial(console.print, highlight=False, soft_wrap=True)


def silent(said: str) -> None:
    """Where nobody wants lines: in a loop by hand, or in the middle of Keras's own."""


def _of_machines(model: Any, sync: Any, split: Any, per_device: Any) -> Iterator[Problem]:
    """What does not work where several machines train together."""
    if isinstance(sync, Synchronous) and sync.data != "whole":
        rule = "is for cn.Trainer: Keras's metrics are those of whole batches, which no machine would have"
        yield Problem("data", sync.data, rule, 'Leave it out for data="whole"')
    if getattr(sync, "across", "devices") != "devices":
        rule = "is for cn.Trainer: Keras looks at the model after every step, when machines differ"
        yield Problem("across", sync.across, rule, "Leave it out, or use cn.Trainer")
        return
    yield from of_machines(None, sync)
    if joined() is None:
        return
    if isinstance(model, keras.Model) and has_own(model, "train_step"):
        rule = "has a train_step of its own, which is for the devices of one machine"
        yield Problem("model", model.name, rule, "Use cn.Trainer with its loss, or train on one machine")
    rule, fix = "is for the devices of one machine", "Leave it out, or train on one machine"
    if per_device is True:
        yield Problem("per_device", per_device, rule, fix)
    if split is not None:
        yield Problem("split", split, rule, fix)


def _of_inputs(split: Any, per_device: Any, sync: Any, variables: Any) -> Iterator[Problem]:
    """What does not go with batches that are cut in another way, or not at all."""
    yield from split_problems(split)
    if not isinstance(per_device, bool):
        yield Problem("per_device", per_device, "must be True or False", "Leave it out to cut batches")
    if per_device is True:
        if split is not None:
            rule = "has no meaning with per_device=True, where nothing is cut"
            yield Problem("split", split, rule, "Leave one of them out")
        if not isinstance(sync, Synchronous):
            rule = "has no meaning with per_device=True, where one update is made over all batches"
            yield Problem("sync", sync, rule, "Leave it out")
        if variables not in ("auto", "mirrored"):
            rule = "has no meaning with per_device=True, where every device has what it writes"
            yield Problem("variables", variables, rule, "Leave it out")


def _distributed(model: keras.Model) -> Iterator[Problem]:
    """A model or a call in the scope of one of TensorFlow's strategies."""
    rule = "has devices of its own, and cn.fit brings its own too"
    if tf.distribute.has_strategy():
        name = type(tf.distribute.get_strategy()).__name__
        yield Problem("strategy", name, rule, "Call cn.fit outside of its scope")
        return
    strategies = (
        [model.distribute_strategy] if model.distribute_strategy is not tf.distribute.get_strategy() else []
    )
    mirrored = [v for v in model.variables if isinstance(v.value, tf.distribute.DistributedValues)]
    if strategies or mirrored:
        value = type(strategies[0]).__name__ if strategies else mirrored[0].path
        yield Problem("strategy", value, rule, "Make the model outside of its scope; cn.fit needs none")


def _problems(model: Any, sync: Sync, num_devices: int) -> Iterator[Problem]:
    if not isinstance(model, keras.Model):
        yield Problem("model", type(model).__name__, "must be a Keras model", "Use cn.Trainer for functions")
        return
    own = has_own(model, "train_step")
    if not model.compiled or (model.optimizer is None and not own):
        yield Problem("model", model.name, "is not compiled", "Call model.compile(optimizer, loss) first")
        return
    yield from _distributed(model)
    if has_own(model, "make_train_function"):
        rule = "has a make_train_function of its own, which cn.fit would take the place of"
        yield Problem("model", model.name, rule, "Override train_step instead")
    if own and num_devices > 1 and not isinstance(sync, Synchronous):
        rule = "has no meaning for a train_step of the model's own, whose updates are made together"
        yield Problem("sync", sync, rule, "Leave it out for cn.Synchronous()")
    if model.run_eagerly:
        yield Problem("model", model.name, "is compiled with run_eagerly=True", "Compile it without")
    if num_devices > 1 and not isinstance(sync, Synchronous) and not own:
        yield from of_slices(model.loss)
