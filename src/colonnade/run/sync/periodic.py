"""`cn.LocalSGD`, `cn.DiLoCo` and `cn.Elastic`, values of `sync=`: their arguments and checks."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any, ClassVar

import keras

from colonnade.errors import Problem, check, whole
from colonnade.run.engine.protocols import Settings
from colonnade.run.engine.traces import Traces
from colonnade.run.machines.compression import KINDS
from colonnade.run.sync.averaging import Averaged, Pulled
from colonnade.run.sync.local import Local
from colonnade.run.sync.machine_joins import MachineJoins
from colonnade.run.sync.workers import Replicas
from colonnade.run.variables.homes import MODES


@dataclass(frozen=True)
class LocalSGD:
    """Each replica makes `every` steps on its own variables; then the replicas are averaged.

    Args:
        every: steps between averages.
        outer: a Keras optimizer that treats what the average has moved by as a gradient; without one
            the replicas go on from the average itself.
        across: `devices`: each device is a replica of its own; `machines`: each machine is, and its devices
            train synchronously (see `docs/machines_training.md`).
        compress: across machines, how what parameters have moved by is sent: as it is (None), as `bfloat16`,
            or as `int8`.

    Example:
        >>> import colonnade as cn, keras
        >>> sync = cn.LocalSGD(every=8, outer=keras.optimizers.SGD(1.0, momentum=0.9))
    """

    every: int
    outer: Any = None
    across: str = "devices"
    compress: str | None = None

    def __post_init__(self) -> None:
        amiss = [*whole("every", self.every, 1, like=8, numpy=True), *_outer_problems(self.outer)]
        check("LocalSGD()", [*amiss, *_across_problems(self.across, self.compress)])

    @property
    def homes(self) -> tuple[str, ...]:
        return homes_across(self.across)

    def problems(self, num_devices: int) -> Iterator[Problem]:
        yield from ()

    def engine(self, settings: Settings) -> Local | MachineJoins:
        outer = None if self.outer is None else _copied(self.outer)
        if self.across == "machines":
            return _joins(settings, int(self.every), Averaged(outer), self.compress)
        return Local(settings, int(self.every), Averaged(outer))


@dataclass(frozen=True)
class DiLoCo:
    """Local training for many steps, with Nesterov momentum on what the average has moved by.

    It is `LocalSGD` with the outer optimizer of Douillard and others (2023): a rate of 0.7 and a momentum
    of 0.9.

    Args:
        every: steps between averages.
        across, compress: as for `LocalSGD`.

    Example:
        >>> import colonnade as cn
        >>> sync = cn.DiLoCo(every=32)
    """

    every: int = 32
    across: str = "devices"
    compress: str | None = None

    def __post_init__(self) -> None:
        amiss = whole("every", self.every, 1, like=8, numpy=True)
        check("DiLoCo()", [*amiss, *_across_problems(self.across, self.compress)])

    @property
    def homes(self) -> tuple[str, ...]:
        return homes_across(self.across)

    def problems(self, num_devices: int) -> Iterator[Problem]:
        yield from ()

    def engine(self, settings: Settings) -> Local | MachineJoins:
        outer = keras.optimizers.SGD(0.7, momentum=0.9, nesterov=True)
        return LocalSGD(self.every, outer, self.across, self.compress).engine(settings)


@dataclass(frozen=True)
class Elastic:
    """Replicas and a centre pull at each other every so many steps; the centre is what is evaluated.

    A pull moves a replica by `alpha` of its way to the centre, and the centre by the sum of what the
    replicas were moved by (Zhang, Choromanska and LeCun, 2015).

    Args:
        every: steps between pulls.
        alpha: how strong a pull is; 0 leaves the replicas independent, and the centre where it is.

    Example:
        >>> import colonnade as cn
        >>> sync = cn.Elastic(every=8, alpha=0.1)
    """

    every: int
    alpha: float
    homes: ClassVar[tuple[str, ...]] = ("mirrored",)

    def __post_init__(self) -> None:
        check("Elastic()", [*whole("every", self.every, 1, like=8, numpy=True), *self._alpha_problems()])

    def _alpha_problems(self) -> Iterator[Problem]:
        number = isinstance(self.alpha, Real) and not isinstance(self.alpha, bool)
        if not number or not 0 <= self.alpha < 1:
            yield Problem("alpha", self.alpha, "must be a number from 0 to below 1", "Try alpha=0.1")

    def problems(self, num_devices: int) -> Iterator[Problem]:
        # A join multiplies the distance between the centre and the replicas' mean by 1 - alpha (n + 1).
        if self.alpha * (num_devices + 1) >= 2:
            rule = f"moves the centre of {num_devices} replicas so far past them that it would never settle"
            fix = f"Try alpha={0.9 / num_devices:.2g}"
            yield Problem("alpha", self.alpha, rule, fix)

    def engine(self, settings: Settings) -> Local:
        return Local(settings, int(self.every), Pulled(float(self.alpha)))


def homes_across(across: str) -> tuple[str, ...]:
    """Where variables may live: what trains synchronously may have any home, what does not, its own."""
    return MODES if across == "machines" else ("mirrored",)


def _joins(settings: Settings, every: int, join: Averaged, compress: str | None) -> MachineJoins:
    settings = replace(settings, peers=settings.peers.by_themselves())
    traces = Traces(settings)
    workers = Replicas(settings, traces)
    return MachineJoins(settings, traces, workers, every=every, join=join, compress=compress)


def _across_problems(across: Any, compress: Any) -> Iterator[Problem]:
    if across not in ("devices", "machines"):
        yield Problem("across", across, "must be devices or machines", "Leave it out for devices")
    if compress not in KINDS:
        yield Problem("compress", compress, "must be None, bfloat16 or int8", "Leave it out")
    elif compress is not None and across != "machines":
        rule = "is for what machines send to each other"
        yield Problem("compress", compress, rule, 'Leave it out, or choose across="machines"')


def _copied(outer: Any) -> Any:
    """A copy of its own: the optimizer's state belongs to one training."""
    return type(outer).from_config({**outer.get_config(), "name": "outer"})


def _outer_problems(outer: Any) -> Iterator[Problem]:
    if outer is None:
        return
    if not all(hasattr(outer, name) for name in ("apply", "build", "get_config")):
        rule, fix = (
            "must be a Keras 3 optimizer",
            "Try keras.optimizers.SGD(0.7, momentum=0.9, nesterov=True)",
        )
        yield Problem("outer", outer, rule, fix)
        return
    kind, configured = type(outer).__name__, "is copied by its configuration, "
    try:
        copied = _copied(outer)
    except (TypeError, ValueError) as error:
        fix = "Register classes of your own (keras.saving.register_keras_serializable()), with a get_config()"
        yield Problem("outer", kind, f"{configured}which fails: {str(error).splitlines()[0]}", fix)
        return
    untold = [] if outer.built else sorted(vars(outer).keys() - vars(copied).keys())
    if untold:
        fix = "Say it in the constructor, or in a class of your own"
        yield Problem("outer", kind, f"{configured}which does not tell of {untold[0].lstrip('_')}", fix)
