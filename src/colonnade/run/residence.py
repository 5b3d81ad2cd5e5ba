"""Where the variables of a training live, and which of them each replica reads and writes.

    shared        one copy of the parameters; every replica reads it
    mirrored      a copy on every device, all updated alike
    partitioned   every parameter, with its optimizer state, lives on one device, dealt by size; parts of
                  a layer that is split by width stay where the layer put them
    local         every device has parameters and optimizer state of its own (not a choice of the user's)

What the function itself changes (moving averages, states of random generators) is kept once per
replica in every mode, so that replicas neither wait for each other nor draw the same numbers.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from colonnade.run.graph import Capture
from colonnade.run.parts import home_of

SEED_STRIDE = 1_000_003
MODES = ("shared", "mirrored", "partitioned")

Bindings = dict[Any, Any]  # the handle to use, by the ref() of the variable that was captured


@dataclass(frozen=True)
class State:
    """A variable that the function changes, with a copy for each replica."""

    original: tf.Variable
    copies: tuple[tf.Variable, ...]
    random: bool  # the state of a random generator, of which each replica has its own stream

    @property
    def averaged(self) -> bool:
        """Floats, such as moving averages, are averaged; of counters and seeds, replica 0's is kept."""
        return bool(self.original.dtype.is_floating)


class Residence:
    """The copies of variables that a mode needs, and the bindings of each replica."""

    def __init__(
        self,
        mode: str,
        devices: Sequence[str],
        parameters: Sequence[tf.Variable],
        slots: Sequence[tf.Variable],
    ) -> None:
        self.mode, self.devices = mode, tuple(devices)
        self.parameters, self.slots = list(parameters), list(slots)
        self.states: dict[Any, State] = {}
        self._copies: list[Bindings] = [{} for _ in devices]  # per device: other variables, by ref
        self._aliases: list[Bindings] = [{} for _ in devices]
        self._stand_ins: list[Bindings] = [{} for _ in devices]  # per device: for what loops read, by ref
        for variable in [*parameters, *slots]:
            self._house(variable)

    def _house(self, variable: tf.Variable) -> None:
        if self.mode in ("mirrored", "local"):
            for i in range(0 if self.mode == "local" else 1, len(self.devices)):
                self._copies[i][variable.ref()] = copy_of(variable, self.devices[i])

    def own(self, replica: int, variables: Iterable[tf.Variable]) -> list[tf.Variable]:
        """What a replica has for these variables: its copies, or the variables themselves."""
        return [self._copies[replica].get(variable.ref(), variable) for variable in variables]

    def deal(self, owners: dict[Any, int], devices: Sequence[str]) -> None:
        """Give each parameter and slot to a device (partitioned); all replicas share the owner's copy."""
        for variable in [*self.parameters, *self.slots]:
            if home_of(variable) is not None:
                continue
            copy = copy_of(variable, devices[owners[variable.ref()]])
            for copies in self._copies:
                copies[variable.ref()] = copy

    def bindings(self, replica: int, captures: Iterable[Capture]) -> Bindings:
        """The handles with which a replica's function is called."""
        found: Bindings = {}
        for capture in captures:
            variable = capture.variable
            if variable is None:
                continue
            if capture.written:
                found[variable.ref()] = self._state(capture).copies[replica].handle
            else:
                found[variable.ref()] = self._read(replica, variable)
        return found

    def update_bindings(self, replica: int, captures: Iterable[Capture]) -> Bindings:
        """The handles with which the update is called on a device."""
        variables = [capture.variable for capture in captures if capture.variable is not None]
        return {v.ref(): self._copies[replica].get(v.ref(), v).handle for v in variables}

    def make_stand_ins(self, replica: int, captures: Iterable[Capture]) -> None:
        """In eager code, before `stand_ins`."""
        own, device = self._stand_ins[replica], self.devices[replica]
        for capture in captures:
            if capture.variable is not None and capture.looped and not capture.written:
                (source,) = self.own(replica, [capture.variable])
                if not source.device.endswith(device) and source.ref() not in own:
                    own[source.ref()] = copy_of(source, device)

    def stand_ins(self, replica: int, captures: Iterable[Capture]) -> Bindings:
        """Handles on the replica's device for what its loops read, given the values of this moment.

        A loop that reads from another device waits for it at every turn. On the CPU a stand-in takes
        the buffer and not a copy of it, until the update writes a new one.
        """
        found: Bindings = {}
        for capture in captures:
            if capture.variable is None or capture.written:
                continue
            (source,) = self.own(replica, [capture.variable])
            own = self._stand_ins[replica].get(source.ref())
            if own is not None:
                own.assign(source.read_value())
                found[capture.variable.ref()] = own.handle
        return found

    def _read(self, replica: int, variable: tf.Variable) -> Any:
        """A handle of the replica's own.

        Replicas that are given the same handle are run one after the other, because TensorFlow takes
        a call for a write; another tensor for the same variable does not show that.
        """
        own = self._aliases[replica]
        if variable.ref() not in own:
            spread = self.mode in ("mirrored", "local")
            if spread and replica and variable.ref() not in self._copies[replica]:
                self._copies[replica][variable.ref()] = copy_of(variable, self.devices[replica])
            source = self._copies[replica].get(variable.ref(), variable)
            with tf.init_scope(), tf.device(source.device):
                own[variable.ref()] = tf.identity(source.handle)
        return own[variable.ref()]

    def _state(self, capture: Capture) -> State:
        variable = capture.variable
        if variable.ref() not in self.states:
            copies = tuple(copy_of(variable, device) for device in self.devices)
            random = is_random_state(capture)
            if random:
                for replica, copy in enumerate(copies):
                    copy.assign(another_stream(variable, replica))
            self.states[variable.ref()] = State(variable, copies, random)
        return self.states[variable.ref()]

    def enter(self) -> None:
        """Before steps: the user's variables are the truth; copies take their values."""
        self.refresh()
        self.restore_states()

    def refresh(self, but: frozenset[Any] = frozenset()) -> None:
        """Give all copies the values of the user's variables, except those of some, named by their refs."""
        for variable, copy in self._pairs():
            if variable.ref() not in but:
                copy.assign(variable)

    def restore_states(self, only: set[Any] | None = None) -> list[Any]:
        """Give the replicas' copies the values of the user's variables; random streams go on.

        With `only`, a set of refs, that of some of them.
        """
        wanted = [s for s in self.states.values() if only is None or s.original.ref() in only]
        changed = [state for state in wanted if not state.random]
        return [copy.assign(state.original.read_value()) for state in changed for copy in state.copies]

    def leave(self) -> None:
        """After steps: the user's variables take the values of the owners' copies (partitioned)."""
        if self.mode == "partitioned":
            for variable, copy in self._pairs():
                variable.assign(copy)

    def _pairs(self) -> list[tuple[tf.Variable, tf.Variable]]:
        pairs = {id(copy): (ref.deref(), copy) for copies in self._copies for ref, copy in copies.items()}
        return list(pairs.values())

    def current(self, variable: tf.Variable) -> tf.Variable:
        """The variable that holds its value between steps: the owner's copy (partitioned) or itself."""
        return self._copies[0].get(variable.ref(), variable) if self.mode == "partitioned" else variable

    def constants(self) -> list[tf.Variable]:
        """What the function reads and nobody here changes; a callback of the user's may."""
        trained = {parameter.ref() for parameter in self.parameters}
        return [ref.deref() for ref in self._aliases[0] if ref not in trained and ref not in self.states]

    def homes(self) -> dict[str, str]:
        """The device of every parameter and slot: the owner's copy where they are partitioned."""
        owned = self._copies[0] if self.mode == "partitioned" else {}
        variables = [*self.parameters, *self.slots]
        return {v.name: owned.get(v.ref(), v).device for v in variables}

    def streams(self) -> list[tf.Variable]:
        """The states of the replicas' random generators."""
        return [copy for state in self.states.values() if state.random for copy in state.copies]

    def settle_states(
        self, mean: Callable[[Sequence[tf.Variable]], Any], *, everywhere: bool = True
    ) -> list[Any]:
        """Ops that give the user's variables what the replicas made of the states, by some mean of them.

        The replicas get it too, unless `everywhere` is False.
        """
        ops = []
        for state in self.states.values():
            if state.averaged:
                targets = (state.original, *(state.copies if everywhere else ()))
                value = mean(state.copies)
                ops += [variable.assign(value) for variable in targets]
            else:
                ops.append(state.original.assign(state.copies[0].read_value()))
        return ops


def mean_of_first(count: int) -> Callable[[Sequence[tf.Variable]], Any]:
    """The mean over the first so many copies."""
    return lambda copies: tf.add_n([copy.read_value() for copy in copies[:count]]) / count


def copy_of(variable: tf.Variable, device: str) -> tf.Variable:
    """A variable with the same value on another device."""
    with tf.init_scope(), tf.device(device):
        return tf.Variable(
            variable.read_value(), trainable=False, dtype=variable.dtype, name=variable.name.partition(":")[0]
        )


def is_random_state(capture: Capture) -> bool:
    """Whether this is the state of Keras's SeedGenerator, or of a tf.random.Generator."""
    keras_seed = capture.variable.name.endswith("seed_generator_state:0")
    return keras_seed or "RngReadAndSkip" in capture.used_by


def another_stream(variable: tf.Variable, replica: int) -> Any:
    """The state that gives a replica numbers of its own, repeatable from the user's seed.

    Keras's state is (seed, counter): another seed. A generator's is (counter, counter, key): another key.
    """
    state = variable.read_value()
    place = 0 if variable.shape == [2] else variable.shape.num_elements() - 1
    offset = tf.cast(replica * SEED_STRIDE, variable.dtype)
    return tf.tensor_scatter_nd_update(state, [[place]], [state[place] + offset])


def owners_of(parameters: Sequence[tf.Variable], devices: Sequence[str], by: str = "size") -> list[str]:
    """The device of each parameter where they are partitioned; parts of a variable stay at home."""
    homes = [home_of(parameter) for parameter in parameters]
    free = [
        p.shape.num_elements() * p.dtype.size for p, home in zip(parameters, homes, strict=True) if not home
    ]
    places = iter(dealt(free, len(devices), by))
    return [home or devices[next(places)] for home in homes]


def dealt(sizes: Sequence[int], num_devices: int, by: str = "size") -> list[int]:
    """Which device gets each of some variables: the largest first to the least loaded, or in turn.

    >>> dealt([10, 40, 20, 30], 2)
    [0, 0, 1, 1]
    >>> dealt([10, 40, 20, 30], 2, by="turn")
    [0, 1, 0, 1]
    """
    if by == "turn":
        return [i % num_devices for i in range(len(sizes))]
    loads = [0] * num_devices
    owners = [0] * len(sizes)
    for i in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        owners[i] = min(range(num_devices), key=lambda d: (loads[d], d))
        loads[owners[i]] += sizes[i]
    return owners
