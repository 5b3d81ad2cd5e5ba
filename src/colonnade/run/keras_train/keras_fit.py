"""`cn.fit(model, ...)` in place of `model.fit(...)`, for a compiled Keras model.

Keras keeps everything around the step: epochs, shuffling, callbacks, validation, history. Only the
step itself, which Keras asks `model.train_function` for, is Colonnade's.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import keras
import tensorflow as tf
from rich.console import Console

from colonnade.errors import InvalidArgument, Problem, check
from colonnade.hardware import devices as hardware
from colonnade.run.checkpoint.checkpoint import Checkpoint
from colonnade.run.engine.protocols import Sync, home, sync_problems
from colonnade.run.keras_train.fit_dataset import FitDataset
from colonnade.run.keras_train.group_step import CutOrWhole, GroupStep
from colonnade.run.keras_train.keras_evaluate import test_step
from colonnade.run.keras_train.keras_profile import profiled_by
from colonnade.run.keras_train.keras_step import KerasStep, of_slices
from colonnade.run.keras_train.own_step import OwnStep
from colonnade.run.keras_train.saved_fit import SavedFit, checkpoint_problems
from colonnade.run.keras_train.split_inputs import SplitInputs, split_problems
from colonnade.run.model.kept_step import keep, kept
from colonnade.run.model.training_step import has_own
from colonnade.run.parallel.parallel import Devices
from colonnade.run.prove.verdict import Prover, of_prove
from colonnade.run.record.profiling import profile_problems
from colonnade.run.sync.lockstep import Synchronous


def fit(
    model: keras.Model,
    x: Any = None,
    y: Any = None,
    *,
    devices: Devices = None,
    sync: Sync | None = None,
    variables: str = "auto",
    prove: bool | str = True,
    profile: range | None = None,
    checkpoint: Checkpoint | None = None,
    split: Sequence[str | int] | None = None,
    per_device: bool = False,
    **arguments: Any,
) -> Any:
    """Train a compiled Keras model on several devices; everything else is `model.fit`.

    Metrics and the loss are those of the whole batch, and a model's own losses (regularisers) count
    once. Validation runs on all devices too. Keras may look at the model after every step, so local replicas
    are averaged for it, and asynchronous devices finish a batch before the next one.

    Args:
        model: a compiled model.
        x, y: what `model.fit` takes: arrays, tensors, a dataset.
        devices: how many devices, or which; all by default.
        sync: how replicas work together, as for `cn.Trainer`.
        variables: where variables live: auto, shared, mirrored or partitioned.
        prove: whether to hold the first batch against one device before anything is trained: loss,
            gradients and metrics must be equal to rounding. `"warn"` goes on where they are not.
        profile: steps, counted from 1, of which to record where the time goes, such as `range(10, 15)`; what
            came of it is in `timeline` of what is returned.
        checkpoint: where to save the training, in a directory of its own; run again, the program goes on from
            there, in the middle of an epoch too. Needs arrays or a `tf.data.Dataset`.
        split: which inputs are cut over the devices, by their keys or places in `x`; every device gets the
            others whole. All, if nothing is said.
        per_device: whether every device takes a whole batch of the data, and one update is made over all of
            them: for batches that cannot be cut, such as graphs.
        **arguments: whatever else `model.fit` takes; `batch_size` is the global one.

    Returns:
        Keras's `History`.

    Example:
        >>> import colonnade as cn, keras, tensorflow as tf
        >>> model = keras.Sequential([keras.layers.Dense(1)])
        >>> model.compile("sgd", "mse")
        >>> history = cn.fit(model, tf.ones([8, 2]), tf.ones([8, 1]), devices=2, epochs=2, verbose=0)
        >>> len(history.history["loss"])
        2
    """
    check("fit()", profile_problems(profile))
    console = Console(quiet=not arguments.get("verbose", "auto"))
    say = partial(console.print, highlight=False, soft_wrap=True)
    chosen, sync = hardware.resolve(devices, "fit()"), Synchronous() if sync is None else sync
    check(
        "fit()",
        [
            *sync_problems(sync, variables, len(chosen)),
            *_problems(model, sync, len(chosen)),
            *of_prove(prove),
            *_of_checkpoint(checkpoint, model, sync, arguments),
            *_of_inputs(split, per_device, sync, variables),
        ],
    )
    cut = SplitInputs(None if split is None else tuple(split))
    how = (chosen, sync, home(sync, variables, chosen), prove, cut, per_device)
    step, tests = kept(model, how) or (
        _step(model, *how[:3], Prover(prove, "fit()", say), cut, per_device=per_device),
        None
        if has_own(model, "make_test_function")
        else test_step(model, chosen, "fit()", cut, per_device=per_device),
    )
    model.train_function, model.test_function = step, tests
    watching = profiled_by(profile, chosen, arguments)
    at_once = model.steps_per_execution
    if per_device:
        # Keras counts batches, and calls for so many of them at a time.
        model.steps_per_execution = at_once * len(chosen)
    try:
        if checkpoint is None:
            history = model.fit(x, y, **arguments)
        else:
            said = {"sync": type(sync).__name__, "variables": how[2]}
            saved = SavedFit(model, step, checkpoint, said)
            history = saved.run(FitDataset.of(x, y, arguments))
        keep(model, how, (step, tests))
        if watching is not None:
            history.timeline = watching.timeline
        return history
    except TypeError:
        if model.train_function is not None:
            raise
        # Keras forgot the step, and called None.
        rule = "was compiled again while it was trained, by a callback; model.fit cannot go on then either"
        fix = "End the training (model.stop_training = True), compile, and call cn.fit again"
        raise InvalidArgument("fit()", [Problem("model", model.name, rule, fix)]) from None
    finally:
        model.train_function = model.test_function = None
        model.steps_per_execution = at_once
        if watching is not None:
            watching.abandon()


def _step(
    model: keras.Model,
    devices: tuple[str, ...],
    sync: Sync,
    mode: str,
    prover: Prover,
    split: SplitInputs,
    *,
    per_device: bool,
) -> Any:
    """What Keras is to call for every batch."""
    whole = GroupStep(model, model.train_step, devices)
    if per_device:
        return whole
    step = (
        OwnStep(model, model.train_step, devices, prover, split)
        if has_own(model, "train_step")
        else KerasStep(model, devices, sync, mode, prover, split)
    )
    return step if len(devices) > 1 or split.named is not None else CutOrWhole(step, whole)


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


def _of_checkpoint(checkpoint: Any, model: Any, sync: Any, arguments: dict[str, Any]) -> Iterator[Problem]:
    if checkpoint is None:
        return
    yield from checkpoint_problems(checkpoint, model, arguments)
    if not isinstance(sync, Synchronous):
        rule = "is not saved by cn.fit, whose callbacks see averages that it would go on from"
        yield Problem("sync", sync, rule, "Leave it out, or use cn.Trainer, which goes on in every mode")


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
