"""What the experiment compares: modes, numbers of devices, their speeds, seeds and rates."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace

from colonnade.experiment.numpy_modes import (
    Mode,
    NumpyAsynchronous,
    NumpyDiLoCo,
    NumpyElastic,
    NumpyLocal,
    NumpySynchronous,
)

# In the order of tables. "Damped" takes smaller steps where the gradient is old. "In turn" is no mode that
# anybody would use, because its devices wait for each other; it makes as many updates as asynchronous
# training, without any age, and so tells the effects of the two apart.
MODES: dict[str, Mode] = {
    mode.name: mode
    for mode in (
        NumpySynchronous(),
        NumpyAsynchronous(),
        NumpyAsynchronous("damped", damping=True),
        NumpyAsynchronous("staleness 16", 16),
        NumpyAsynchronous("staleness 4", 4),
        NumpyAsynchronous("staleness 1", 1),
        NumpyAsynchronous("in turn", 0),
        NumpyLocal("local 8", 8),
        NumpyDiLoCo("DiLoCo 32", 32),
        NumpyElastic("elastic", 8),
    )
}
ASIDE = ("damped", "in turn")  # to explain the others by
PACES = ("even", "one slow")
SLOWNESS = 4.0  # the last device needs so many times as long


@dataclass(frozen=True)
class Trial:
    """A mode on so many devices of such speeds; it is run with all seeds and rates at once."""

    mode: str
    num_devices: int
    pace: str

    @property
    def seconds(self) -> list[float]:
        """For each device the time it needs for a slice."""
        last = SLOWNESS if self.pace == "one slow" else 1.0
        return [1.0] * (self.num_devices - 1) + [last]

    @property
    def stand_in(self) -> "Trial":
        """The trial that has the same outcome: where nobody overtakes anybody, speeds change nothing."""
        return self if MODES[self.mode].raced and self.num_devices > 1 else replace(self, pace="even")


@dataclass(frozen=True)
class Design:
    """All that an outcome depends on.

    `every` is the number of steps between two evaluations. A step is one global batch in every mode, so
    after as many steps all have seen the same examples.
    """

    data: str = "digits"
    modes: tuple[str, ...] = tuple(MODES)
    devices: tuple[int, ...] = (1, 2, 4, 6, 8)
    seeds: int = 5
    rates: tuple[float, ...] = tuple(2.0**power for power in range(-5, 3))
    steps: int = 640
    every: int = 8
    batch: int = 48
    hidden: int = 32
    noise: tuple[float, ...] = (0.1, 0.2, 0.3, 0.4)

    @classmethod
    def quick(cls, data: str = "digits") -> "Design":
        """Enough to see every part of it work, and too little to conclude from."""
        return cls(data, devices=(1, 6), seeds=2, rates=(0.125, 0.5, 1.0), steps=64, every=16)

    def trials(self) -> Iterator[Trial]:
        """All of them; those with the outcome of another come after it."""
        for pace in PACES:
            for mode in self.modes:
                for num_devices in self.devices:
                    yield Trial(mode, num_devices, pace)

    @property
    def examples(self) -> list[int]:
        """How many examples have been seen at each evaluation."""
        return [k * self.batch for k in range(self.every, self.steps + 1, self.every)]

    def to_json(self) -> str:
        return json.dumps(asdict(self))
