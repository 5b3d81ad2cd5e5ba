"""`cn.fit(model, ...)` in place of `model.fit(...)`, for a compiled Keras model.

Keras keeps everything around the step: epochs, shuffling, callbacks, validation, history. Only the
step itself, which Keras asks `model.train_function` for, is Colonnade's.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import keras

from colonnade.errors import InvalidArgument, Problem, check
from colonnade.hardware.clusters.joining import machines
from colonnade.run.checkpoint.checkpoint import Checkpoint
from colonnade.run.engine.protocols import Sync
from colonnade.run.keras_callbacks.common_callbacks import CommonCallbacks, common, uncommon
from colonnade.run.keras_callbacks.looking_ahead import looking_ahead
from colonnade.run.keras_callbacks.onlookers import listed, shows_late, unseen
from colonnade.run.keras_train.fit_dataset import FitDataset
from colonnade.run.keras_train.keras_profile import profiled_by
from colonnade.run.keras_train.model_steps import How, ModelSteps, saying
from colonnade.run.keras_train.saved_fit import SavedFit, checkpoint_problems
from colonnade.run.model.exchanged import lent
from colonnade.run.parallel.parallel import Devices
from colonnade.run.record.profiling import profile_problems
from colonnade.run.sync.lockstep import Synchronous

# What machines that train together must be asked for alike, or one would wait for the steps of another.
COUNTED = ("batch_size", "epochs", "initial_epoch", "steps_per_epoch", "validation_freq", "validation_steps")


def fit(
    model: keras.Model,
    x: Any = None,
    y: Any = None,
    batch_size: int | None = None,
    epochs: int = 1,
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
        x, y, batch_size, epochs: what `model.fit` takes: arrays, tensors, a dataset; `batch_size` is the
            global one.
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
        **arguments: whatever else `model.fit` takes.

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
    if not machines().is_first:  # one machine says what all do
        arguments["verbose"] = 0
    arguments |= {"batch_size": batch_size, "epochs": epochs}
    how = How.chosen("fit()", devices, sync, variables, prove, split, per_device=per_device)
    check("fit()", [*how.problems(model), *_of_checkpoint(checkpoint, model, how.sync, arguments)])
    given = arguments.get("callbacks")
    if how.peers.several:
        check("fit()", uncommon(given))
        how.peers.agree("fit()", _asked(model, checkpoint, arguments))
    together = common(how.peers, given)
    if how.peers.several:
        arguments["callbacks"] = together.own
    steps = ModelSteps(model, how, saying(arguments.get("verbose", "auto")), validates=True)
    watching = profiled_by(profile, how.devices, how.sync, arguments)
    late = shows_late(steps.train, how.sync, x, arguments.get("callbacks"))
    with (
        looking_ahead(steps.train, arguments.get("callbacks"), how.peers) as (train, counting),
        lent(model, how.at_a_time, train_function=train, test_function=steps.test),
    ):
        try:
            with unseen(steps.train, late=late) as showing, how.peers.fitting():
                front, behind = [*together.front, *counting, *showing], together.behind
                if checkpoint is None:
                    if front:
                        arguments["callbacks"] = [*front, *listed(arguments.get("callbacks")), *behind]
                    history = model.fit(x, y, **arguments)
                else:
                    said = {"sync": type(how.sync).__name__, "variables": how.home}
                    heard = CommonCallbacks(front, listed(arguments.pop("callbacks", None)), behind)
                    saved = SavedFit(model, steps.train, checkpoint, said, heard, how.peers)
                    history = saved.run(FitDataset.of(x, y, arguments))
            steps.keep()
            if watching is not None:
                history.timeline = watching.timeline
            return history
        except TypeError:
            if model.train_function is not None:
                raise
            # Keras forgot the step, and called None.
            rule = (
                "was compiled again while it was trained, by a callback; model.fit cannot go on then either"
            )
            fix = "End the training (model.stop_training = True), compile, and call cn.fit again"
            raise InvalidArgument("fit()", [Problem("model", model.name, rule, fix)]) from None
        finally:
            if watching is not None:
                watching.abandon()


def _asked(model: keras.Model, checkpoint: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    """Of one machine, to be compared."""
    validates = arguments.get("validation_data") is not None or bool(arguments.get("validation_split"))
    return {
        **{name: arguments.get(name) for name in COUNTED},
        "validation": "some" if validates else "none",
        "steps_per_execution": model.steps_per_execution,
        "checkpoint every": checkpoint and checkpoint.every,
    }


def _of_checkpoint(checkpoint: Any, model: Any, sync: Any, arguments: dict[str, Any]) -> Iterator[Problem]:
    if checkpoint is None:
        return
    yield from checkpoint_problems(checkpoint, model, arguments)
    if not isinstance(sync, Synchronous):
        rule = "is not saved by cn.fit, whose callbacks see averages that it would go on from"
        yield Problem("sync", sync, rule, "Leave it out, or use cn.Trainer, which goes on in every mode")
