"""Where variables live: one shared copy, a mirrored copy on every device, or partitioned over them.

    shared        one copy of the parameters; every replica reads it
    mirrored      a copy on every device, all updated alike
    partitioned   every parameter, with its optimizer state, lives on one device, dealt by size; parts of
                  a layer that is split by width stay where the layer put them
    local         every device has parameters and optimizer state of its own (not a choice of the user's)

What the function itself changes (moving averages, states of random generators) is kept once per
replica in every mode, so that replicas neither wait for each other nor draw the same numbers. That goes
for what it assigns to a trained variable too: the replicas' copies become one value (see `aggregation`),
which the variable takes before its update.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from colonnade.hardware import devices as hardware
from colonnade.reason.simulator.owners import dealt
from colonnade.run.move.num_bytes import num_bytes
from colonnade.run.move.seed_places import seed_place
from colonnade.run.trace.captures import Capture
from colonnade.run.variables.aggregation import (
    Mean,
    ReplicatedState,
    another_stream,
    is_random_state,
    rule_of,
)
from colonnade.run.variables.digests import Digests, can_digest
from colonnade.run.variables.late_states import LateStates
from colonnade.run.variables.parts import home_of

MODES = ("shared", "mirrored", "partitioned")

Bindings = dict[Any, Any]  # the handle to use, by the ref() of the variable that was captured


class Homes:
    """The copies of variables that a mode needs, and the bindings of each replica."""

    def __init__(
        self,
        mode: str,
        devices: Sequence[str],
        parameters: Sequence[tf.Variable],
        slots: Sequence[tf.Variable],
        *,
        first: int = 0,
        total: int | None = None,
    ) -> None:
        """Where other machines have replicas too, `total` on all of them, with the number of the `first`."""
        self.mode, self.devices = mode, tuple(devices)
        self.first, self.total = first, len(self.devices) if total is None else total
        self.parameters, self.slots = list(parameters), list(slots)
        self._trained = {parameter.ref() for parameter in parameters}
        self.states: dict[Any, ReplicatedState] = {}
        self._digests: tuple[list[tf.Variable], Digests] | None = None
        self._left: Any = None  # the digests of the user's variables when he was last given them
        self.trusted = True  # whether no step has failed, which may leave copies that differ
        self.assigned: dict[Any, tf.Variable] = {}  # by ref, what is trained and the function changes
        self._copies: list[Bindings] = [{} for _ in devices]  # per device: other variables, by ref
        self._aliases: list[Bindings] = [{} for _ in devices]
        self._stand_ins: list[Bindings] = [{} for _ in devices]  # per device: for what loops read, by ref
        for variable in [*parameters, *slots]:
            self._house(variable)
        # Where messages cost, averages are settled when somebody looks; whoever trains in lockstep says so.
        self.late = LateStates(self.states, copy_of)

    def _house(self, variable: tf.Variable) -> None:
        for replica, device in enumerate(self.devices):
            if self._has_copy(replica, variable) or self.mode == "local":
                self._copies[replica][variable.ref()] = copy_of(variable, device)

    def _has_copy(self, replica: int, variable: tf.Variable) -> bool:
        """Whether a replica needs a copy; the first takes the variable itself, unless a link is between."""
        if self.mode not in ("mirrored", "local"):
            return False
        first = self.devices[0]
        return replica > 0 or (
            self.mode == "mirrored" and hardware.is_card(first) and not variable.device.endswith(first)
        )

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
        bindings: Bindings = {}
        for capture in captures:
            variable = capture.variable
            if variable is None:
                continue
            own = self._written(replica, capture)
            if own is not None:
                bindings[variable.ref()] = own.handle
            else:
                bindings[variable.ref()] = self._read(replica, variable)
        return bindings

    def bindings_after(self, calls: Sequence[Any], captures: Iterable[Capture]) -> Bindings:
        """Those of replica 0 for what is called after the function: it reads what the function assigned.

        The handles themselves wait, because the control inputs of a call may be lost where it is on
        another device than what it waits for.
        """
        bindings = self.bindings(0, captures)
        for ref in self.assigned.keys() & bindings.keys():
            with tf.device(self.states[ref].copies[0].device), tf.control_dependencies(calls):
                bindings[ref] = tf.identity(bindings[ref])
        return bindings

    def update_bindings(self, replica: int, captures: Iterable[Capture]) -> Bindings:
        """The handles with which the update is called on a device."""
        variables = [capture.variable for capture in captures if capture.variable is not None]
        return {v.ref(): self._copies[replica].get(v.ref(), v).handle for v in variables}

    def make_stand_ins(self, replica: int, captures: Iterable[Capture], *, compiled: bool = False) -> None:
        """In eager code, before `stand_ins`; for all that is read, where XLA compiles the function."""
        own, device = self._stand_ins[replica], self.devices[replica]
        for capture in captures:
            if capture.variable is not None and (capture.looped or compiled) and not capture.written:
                (source,) = self.own(replica, [capture.variable])
                if not source.device.endswith(device) and source.ref() not in own:
                    own[source.ref()] = copy_of(source, device)

    def stand_ins(self, replica: int, captures: Iterable[Capture]) -> Bindings:
        """Handles on the replica's device for what its loops read, given the values of this moment.

        A loop that reads from another device waits for it at every turn, and XLA reads from one device only.
        On the CPU a stand-in takes the buffer and not a copy of it, until the update writes a new one.
        """
        bindings: Bindings = {}
        for capture in captures:
            if capture.variable is None or capture.written:
                continue
            (source,) = self.own(replica, [capture.variable])
            own = self._stand_ins[replica].get(source.ref())
            if own is not None:
                own.assign(source.read_value())
                bindings[capture.variable.ref()] = own.handle
        return bindings

    def _read(self, replica: int, variable: tf.Variable) -> Any:
        """A handle of the replica's own.

        Replicas that are given the same handle are run one after the other, because TensorFlow takes
        a call for a write; another tensor for the same variable does not show that.
        """
        own = self._aliases[replica]
        if variable.ref() not in own:
            if self._has_copy(replica, variable) and variable.ref() not in self._copies[replica]:
                self._copies[replica][variable.ref()] = copy_of(variable, self.devices[replica])
            (source,) = self.own(replica, [variable])
            with tf.init_scope(), tf.device(source.device):
                own[variable.ref()] = tf.identity(source.handle)
        return own[variable.ref()]

    def _written(self, replica: int, capture: Capture) -> tf.Variable | None:
        """What a replica has for a variable that the function changes; None if it changes it nowhere.

        Its handle is the same for whatever uses it, so that what reads it waits for what wrote it.
        """
        ref = capture.variable.ref()
        if capture.written and ref in self._trained:
            self.assigned[ref] = capture.variable
        if self.mode == "local" and ref in self.assigned:  # a replica has parameters of its own
            return self._copies[replica][ref]
        if capture.written and ref not in self.states:
            self.states[ref] = self._state(capture)
        return self.states[ref].copies[replica] if ref in self.states else None

    def _state(self, capture: Capture) -> ReplicatedState:
        variable, random = capture.variable, is_random_state(capture)
        places = self._state_devices(variable)
        if random:
            places = [seed_place(device) for device in places]
        copies = tuple(copy_of(variable, device) for device in places)
        several = self.total > len(self.devices) or len(copies) > 1
        summed = several and rule_of(variable) == "sum"
        if random:
            for replica, copy in enumerate(copies, self.first):
                copy.assign(another_stream(variable, replica))
        base = copy_of(variable, copies[0].device) if summed and not random else None
        return ReplicatedState(variable, copies, random, variable.ref() in self.assigned, base)

    def _state_devices(self, variable: tf.Variable) -> Sequence[str]:
        """Where the replicas' copies of what the function changes are."""
        return self.devices

    def enter(self) -> None:
        """Before steps: the user's variables are the truth; copies take their values.

        Where messages cost, only those that are not as he was last given them.
        """
        same = self._unchanged()
        self._left, self.trusted = None, True
        self.refresh(but=same)
        self.restore_states(only=self.states.keys() - same)

    def freshen(self) -> None:
        """Between steps: copies take what the user has assigned, for others to read them."""
        self.enter()
        self._note()

    def _unchanged(self) -> frozenset[Any]:
        """The refs of the user's variables that he has not changed since he was last given them."""
        if self._left is None or self._digests is None:
            return frozenset()
        variables, digests = self._digests
        if len(variables) != len(self._digested()):  # there are new ones
            return frozenset()
        same = digests.now() == self._left
        return frozenset(v.ref() for v, is_same in zip(variables, same, strict=True) if is_same)

    def _digested(self) -> list[tf.Variable]:
        originals = {variable.ref(): variable for variable, _ in self._pairs()}
        originals |= {ref: state.original for ref, state in self.states.items()}
        return [variable for variable in originals.values() if can_digest(variable)]

    def distrust(self) -> None:
        """A step has failed: all copies take the user's values before the next one."""
        self.trusted = False

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
        return [
            copy.assign(self.current(state.original).read_value())
            for state in changed
            for copy in (*state.copied, *self.late.kept.get(state.original.ref(), ()))
        ]

    def undo_states(self) -> list[Any]:
        """Ops that take back what the replicas made of the states in a step; random streams go on."""
        return self.restore_states(only=self.states.keys() - self.late.kept.keys()) + self.late.undo()

    def leave(self) -> None:
        """After steps: the user's variables take the values of the copies that hold them meanwhile."""
        for ref, copy in self._owned().items():
            ref.deref().assign(copy)
        self.late.settle()
        self._note()

    def _note(self) -> None:
        """Look at the user's variables as he is given them, where messages cost."""
        self._left = None
        if self.trusted and hardware.are_cards(self.devices) and len(self.devices) > 1:
            variables = self._digested()
            if self._digests is None or len(self._digests[0]) != len(variables):
                self._digests = variables, Digests(variables)
            self._left = self._digests[1].now()

    def _owned(self) -> Bindings:
        """The copies that hold the values between steps, in place of the user's variables."""
        return {} if self.mode == "local" else self._copies[0]

    def _pairs(self) -> list[tuple[tf.Variable, tf.Variable]]:
        pairs = {id(copy): (ref.deref(), copy) for copies in self._copies for ref, copy in copies.items()}
        return list(pairs.values())

    def current(self, variable: tf.Variable) -> tf.Variable:
        """The variable that holds its value between steps: the owner's copy, or itself."""
        return self._owned().get(variable.ref(), variable)

    def constants(self) -> list[tf.Variable]:
        """What the function reads and nobody here changes; a callback of the user's may."""
        known = self._trained | self.states.keys() | {slot.ref() for slot in self.slots}
        return [ref.deref() for ref in self._read_by_first() if ref not in known]

    def _read_by_first(self) -> Iterable[Any]:
        """The refs of what the first replica reads, among others."""
        return self._aliases[0]

    def where(self) -> dict[str, str]:
        """The device of every parameter and slot."""
        return {v.name: self.current(v).device for v in [*self.parameters, *self.slots]}

    def take_assigned(self, mean: Mean, known: Bindings | None = None) -> list[Any]:
        """Ops that give trained variables what the function assigned to them: before the update.

        Where other machines have replicas too, the values are `known`, by ref.
        """
        states = [state for state in self.states.values() if state.trained]
        values = [(state, self._one_value(state, mean, known)) for state in states]
        return [home.assign(value) for state, value in values for home in self.holders(state.original)]

    def holders(self, variable: tf.Variable) -> list[tf.Variable]:
        """All variables that hold its value between steps."""
        held = [self.own(i, [variable])[0] for i in range(len(self.devices))]
        return list({id(one): one for one in held}.values())

    def shared_states(self) -> list[ReplicatedState]:
        """What the function changes and of which there is one value for all replicas."""
        return [state for state in self.states.values() if not state.random]

    def _one_value(self, state: ReplicatedState, mean: Mean, known: Bindings | None) -> Any:
        ref = state.original.ref()
        return known[ref] if known is not None and ref in known else state.value(mean)

    def settle_states(
        self,
        mean: Mean,
        *,
        everywhere: bool = True,
        known: Bindings | None = None,
        late: frozenset[Any] = frozenset(),
    ) -> list[Any]:
        """Ops that give the user's variables what the replicas made of the states, by some mean of them.

        The replicas get it too, unless `everywhere` is False. Of what is trained they get what the update
        made of it. Where other machines have replicas too, the values are `known`, by ref. Those that are
        `late` stay with the replicas until somebody looks.
        """
        ops = self.late.after(late)
        for ref, state in self.states.items():
            if ref in late:
                continue
            if state.random and self.first:
                continue  # the user's variable follows the first device of all
            if state.trained:
                value, targets = self.current(state.original).read_value(), state.copied
            else:
                shared = everywhere and not state.random
                value = self._one_value(state, mean, known)
                user = self.late.kept.get(ref, (state.original,))
                targets = (*user, *(state.copied if shared else ()))
            ops += [variable.assign(value) for variable in targets]
        return ops


def copy_of(variable: tf.Variable, device: str) -> tf.Variable:
    """A variable with the same value on another device."""
    with tf.init_scope(), tf.device(device):
        return tf.Variable(
            variable.read_value(), trainable=False, dtype=variable.dtype, name=variable.name.partition(":")[0]
        )


def owners_of(parameters: Sequence[tf.Variable], devices: Sequence[str], by: str = "size") -> list[str]:
    """The device of each parameter where they are partitioned; parts of a variable stay at home."""
    homes = [home_of(parameter) for parameter in parameters]
    free = [num_bytes(p) for p, home in zip(parameters, homes, strict=True) if not home]
    places = iter(dealt(free, len(devices), by))
    return [home or devices[next(places)] for home in homes]
