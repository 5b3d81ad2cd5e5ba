"""The steps that Keras calls in place of its own, made for a model and for how it is to be trained."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import keras
import tensorflow as tf

from colonnade.errors import Problem
from colonnade.hardware import devices as hardware
from colonnade.hardware.clusters.joining import joined
from colonnade.run.engine.protocols import Sync, home, sync_problems
from colonnade.run.keras_steps.group_step import CutOrWhole, GroupStep
from colonnade.run.keras_steps.keras_losses import of_slices
from colonnade.run.keras_steps.keras_step import KerasStep
from colonnade.run.keras_steps.own_step import OwnStep
from colonnade.run.keras_steps.split_inputs import SplitInputs, split_problems
from colonnade.run.keras_train.keras_evaluate import test_step
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

    def problems(self, model: Any) -> Iterator[Problem]:
        """What is wrong with it, or with the model."""
        yield from sync_problems(self.sync, self.variables, len(self.devices))
        yield from _problems(model, self.sync, len(self.devices))
        yield from of_prove(self.prove)
        yield from _of_inputs(self.split, self.per_device, self.sync, self.variables)
        yield from _of_machines(model, self.sync, self.split, self.per_device)

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
        """Equal for trainings that the same steps serve."""
        return self.devices, self.sync, self.home, self.prove, self.cut, self.per_device


@dataclass(frozen=True)
class ModelSteps:
    """What Keras calls for a batch that it trains on, and for one that it evaluates (None: its own)."""

    how: How
    train: Any
    test: Any

    @classmethod
    def of(cls, model: keras.Model, how: How, where: str, say: Callable[[str], Any]) -> "ModelSteps":
        """Those that were used before, if they fit, or new ones."""
        known = kept(model, how.key)
        if known is not None:
            return cls(how, *known)
        train = _step(
            model,
            how.devices,
            how.sync,
            how.home,
            Prover(how.prove, where, say),
            how.cut,
            how.per_device,
            how.peers,
        )
        own = has_own(model, "make_test_function")
        test = None if own else test_step(model, how.devices, where, how.cut, per_device=how.per_device)
        return cls(how, train, test)

    def keep(self, model: keras.Model) -> None:
        """After a training: to be used again."""
        keep(model, self.how.key, (self.train, self.test))


def _step(
    model: keras.Model,
    devices: tuple[str, ...],
    sync: Sync,
    mode: str,
    prover: Prover,
    split: SplitInputs,
    per_device: bool,
    peers: Peers,
) -> Any:
    """What Keras is to call for every batch."""
    whole = GroupStep(model, model.train_step, devices)
    if per_device:
        return whole
    step = (
        OwnStep(model, model.train_step, devices, prover, split)
        if has_own(model, "train_step")
        else KerasStep(model, devices, sync, mode, prover, split, peers)
    )
    cuts = peers.several or len(devices) > 1 or split.named is not None
    return step if cuts else CutOrWhole(step, whole)


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
