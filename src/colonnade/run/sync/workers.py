"""Replicas of a synchronous step: each computes a slice; their gradients are added up, their copies updated.

Rows of a pipeline are the other kind of workers (see `pipeline.rows`); `Lockstep` takes either.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import tensorflow as tf

from colonnade.errors import Problem
from colonnade.hardware import devices as hardware
from colonnade.run.batch.split import Arguments
from colonnade.run.batch.zeros import with_zeros
from colonnade.run.engine.gradients import components, slice_specs, slices
from colonnade.run.engine.protocols import Links, Settings
from colonnade.run.engine.traces import Traces
from colonnade.run.memory.estimate import Memory, homes_of, of_replicas, with_slices_ahead
from colonnade.run.move.num_bytes import num_bytes
from colonnade.run.move.reduce import Order, bucket_for, spread, star
from colonnade.run.move.reductions import AUTO
from colonnade.run.step.gradient_sums import Recipe
from colonnade.run.step.objective import Objective, Share
from colonnade.run.step.update import Update
from colonnade.run.sync.over_machines import idle_share
from colonnade.run.sync.summation import Summation
from colonnade.run.trace_cut.sync_cut import add_nothing, call_with_sums, problems
from colonnade.run.variables.homes import Homes, owners_of


class Workers(Protocol):
    """Compute the gradients of a step, and hold the copies of the variables that are updated."""

    unbroken: bool  # whether sums must not be broken off once they have begun

    @property
    def every_device(self) -> tuple[str, ...]:
        """All devices that a step uses."""

    def slices(self, counts: Sequence[int]) -> Sequence[int]:
        """How many examples each trace is given, where workers have so many."""

    def traced(self, batch: Arguments, counts: Sequence[int]) -> list[Objective]:
        """The traces of the slices, where workers have so many examples."""

    def refused(self, traces: Sequence[Objective]) -> Iterable[Problem]:
        """What stands in the way of running these traces."""

    def memory(self, batch: Arguments, traces: Sequence[Objective], counts: Sequence[int]) -> Memory:
        """The memory that each device needs for such a batch, told from the traces of its slices."""

    def house(self) -> Homes:
        """A home for parameters and slots."""

    def bind(self, housed: Homes) -> None:
        """Make the variables and handles that the traces need."""

    def compute(
        self, batch: Arguments, counts: Sequence[int], housed: Homes, how: Sequence[Recipe]
    ) -> tuple[list[Share], list[Any]]:
        """What every worker adds to the step, and what to wait for until all have computed."""

    def reduced(self, gradients: Sequence[Sequence[Any]], *, first: bool) -> list[list[Any]]:
        """The sum of each gradient over the workers, for the first copy of the variables.

        `first` is whether the graph that is being made is for the first steps on such batches.

        There may be lists for the other copies too, with the sums that arrive there by the same way.
        """

    def sums_itself(self, rows: Sequence[Sequence[Any]]) -> Update | None:
        """A compiled update that adds up the gradients of all workers by itself, if that is worth it."""

    def spread(self, gradients: list[Any]) -> list[list[Any]]:
        """What is where the first copy of the variables is, once for every copy."""

    def everywhere(self, copies: Sequence[list[Any]]) -> list[list[Any]]:
        """The gradients of every copy of the variables: what `reduced` did not bring there is sent there.

        To be called before it is asked whether all is finite: nothing on its way waits for the answer.
        """

    def updated(self, copies: Sequence[list[Any]], housed: Homes) -> list[Any]:
        """Ops that update every copy of the variables, from what `everywhere` gave."""

    def culprit(self, worker: int, bad: Sequence[str]) -> str:
        """The device on which something is not finite; `bad` are the variables with such a gradient."""

    def links(self) -> Links:
        """Bytes that a step moves from device to device."""

    def update_devices(self) -> dict[tuple[int, str], str]:
        """By the number of a copy of the variables, and an op that updates one of them: the op's device."""


class Replicas:
    """A replica per device; variables are shared, mirrored or partitioned."""

    def __init__(self, settings: Settings, traces: Traces) -> None:
        self._settings, self._devices, self._traces = settings, settings.devices, traces
        self._peers = settings.peers
        # The numbers of this machine's first replica and first slice among those of all machines.
        self._first, self._offset = settings.peers.first, settings.peers.offset
        self._total = settings.num_replicas  # on all machines
        self._along = settings.order  # of sums over all devices
        self._several = settings.peers.several
        self._late = hardware.are_cards(settings.devices) and not self._several
        self._owners: dict[Any, int] = {}  # by the ref of a variable, where variables are partitioned
        self._placed: set[Update] = set()
        self._summation = Summation(settings)
        self.unbroken = self._summation.unbroken

    @property
    def every_device(self) -> tuple[str, ...]:
        """Those of the replicas, and those on which layers that are split by width have parts."""
        return (*self._devices, *homes_of(self._traces.objectives))

    def slices(self, counts: Sequence[int]) -> Sequence[int]:
        return counts

    def traced(self, batch: Arguments, counts: Sequence[int]) -> list[Objective]:
        parts, total = slice_specs(batch, counts), self._offset + len(counts)
        return [self._traces.objective(part, self._offset + i, total) for i, part in enumerate(parts)]

    def refused(self, traces: Sequence[Objective]) -> Iterable[Problem]:
        return problems(traces)

    def memory(self, batch: Arguments, traces: Sequence[Objective], counts: Sequence[int]) -> Memory:
        which = counts.index(max(counts))
        part = slices(with_zeros(batch), counts)[which]
        mode, by = self._settings.mode, self._settings.dealt
        optimizer, devices, active = self._traces.optimizer, self._devices, len(self._peers.own(counts))
        memory = of_replicas(traces[which], optimizer, part, devices, mode, max(active, 1), by)
        return memory if self._peers.several else with_slices_ahead(memory, part, active)

    def house(self) -> Homes:
        mode, slots, parameters = self._settings.mode, self._traces.slots, self._traces.parameters
        update = self._traces.update(self._traces.specs)  # in eager code, where its errors are told
        housed = Homes(mode, self._devices, parameters, slots, first=self._first, total=self._total)
        if mode == "partitioned":
            places = owners_of(parameters, self._devices, self._settings.dealt)
            self._owners = update.owners([self.every_device.index(place) for place in places])
            housed.deal({slot.ref(): 0 for slot in slots} | self._owners, self.every_device)
        return housed

    def bind(self, housed: Homes) -> None:
        for objective in self._traces.objectives:
            compiled = self._settings.compilation.on or objective.facts.compiles
            for i in range(len(self._devices)):
                housed.bindings(i, objective.captures)
                housed.make_stand_ins(i, objective.captures, compiled=compiled)
            if self._late:
                housed.late.prepare(objective)

    def compute(
        self, batch: Arguments, counts: Sequence[int], housed: Homes, how: Sequence[Recipe]
    ) -> tuple[list[Share], list[Any]]:
        first, own = self._first, self._peers.own(counts)
        across = self._peers.sum if self._several else None
        if across is not None and not own:
            traced = self.traced(batch, counts)[0]
            add_nothing(traced, across)
            return [idle_share(traced)], []
        order = self._order(len(own))
        if self._peers.sharded:
            parts = slices(batch, counts, factor=1.0)  # how many rows all machines have is known later
        else:
            parts = slices(batch, counts, range(first, first + len(own)))
        total = self._offset + len(counts)
        traces = [self._traces.objective(part, first + i, total) for i, part in enumerate(parts)]
        bindings = [
            housed.bindings(i, traced.captures) | housed.stand_ins(i, traced.captures)
            for i, traced in enumerate(traces)
        ]
        given = [part.components() for part in parts]
        working, compiled = self._devices[: len(own)], self._settings.compilation.on
        results = call_with_sums(traces, working, given, bindings, order, across, compiled=compiled)
        shares = [traced.pack(leaves) for traced, leaves in zip(traces, results, strict=True)]
        return shares, [leaf for leaves in results for leaf in leaves if isinstance(leaf, tf.Tensor)]

    def _order(self, num_working: int) -> Order:
        """Along which to sum over so many devices, the first ones."""
        return self._along if num_working == len(self._devices) else star(num_working)

    def reduced(self, gradients: Sequence[Sequence[Any]], *, first: bool) -> list[list[Any]]:
        order, made = self._order(len(gradients)), self._traces.objectives[0].made
        return self._summation.sums(gradients, order, self._owner_positions(), made, first=first)

    def _owner_positions(self) -> list[int]:
        """For each parameter the device that owns it; empty where variables are not partitioned."""
        return [self._owners[p.ref()] for p in self._traces.parameters] if self._owners else []

    def _placed_update(self, gradients: Sequence[Any]) -> Update:
        """The update for such gradients, with its work where the variables are."""
        update = self._traces.update(gradients)
        if update not in self._placed:
            if self._settings.mode == "shared":
                update.follow()
            if self._owners:
                update.place(self._owners, self.every_device)
            self._placed.add(update)  # a penalty makes sparse gradients dense, which is another update
        return update

    def sums_itself(self, rows: Sequence[Sequence[Any]]) -> Update | None:
        if self._settings.mode != "shared" or self._traces.penalty is not None:
            return None
        if self._settings.reduce != AUTO or hardware.is_card(self._traces.parameters[0].device):
            return None  # cards have links of their own, and take turns on them
        # A slice of another size may have gradients of another kind.
        alike = len({self._traces.update(row) for row in rows}) == 1
        return update if alike and (update := self._placed_update(rows[0])).sums else None

    def updated(self, copies: Sequence[list[Any]], housed: Homes) -> list[Any]:
        update = self._placed_update(copies[0])
        return [self._updated(update, mine, i, housed) for i, mine in enumerate(copies)]

    def everywhere(self, copies: Sequence[list[Any]]) -> list[list[Any]]:
        if self._settings.mode != "mirrored" or len(self._devices) == 1:
            return [list(copy) for copy in copies]
        first, *others = copies
        missing = [i for i, g in enumerate(first) if g is not None and (not others or others[0][i] is None)]
        sent = self.spread([first[i] for i in missing])
        full = [list(copy) for copy in copies] if others else [list(first) for _ in self._devices]
        for copy, received in zip(full, sent, strict=True):
            for i, gradient in zip(missing, received, strict=True):
                copy[i] = gradient
        return full

    def spread(self, gradients: list[Any]) -> list[list[Any]]:
        bucket = bucket_for(self._devices)
        return spread(gradients, self._devices, self._along, bucket_bytes=bucket)

    def _updated(self, update: Update, gradients: list[Any], home: int, housed: Homes) -> Any:
        """Update one copy of the variables."""
        bindings, mode = housed.update_bindings(home, update.captures), self._settings.mode
        place = self._undivided(update, home, housed)
        if place is not None and update.compiles:
            return update.at_once([components(gradients)], update.bound(bindings), place, home)
        # Where variables are partitioned, what works for one parameter names the device of its owner. If the
        # call had a device too, all gradients would be brought there first.
        device = None if mode == "partitioned" else self._devices[home]
        with tf.device(device), tf.name_scope(f"update_{home}"):
            return update.call(components(gradients), update.bound(bindings))

    def _undivided(self, update: Update, home: int, housed: Homes) -> str | None:
        """The one device of all that is updated with a copy of the variables; None if there are several."""
        mode = self._settings.mode
        if mode == "shared":
            return str(self._traces.parameters[0].device)
        if mode == "partitioned":
            return self.every_device[0] if len(set(self.every_device)) == 1 else None
        device, touched = self._devices[home], [c.variable for c in update.captures if c.variable is not None]
        at_home = all(own.device.endswith(device) for own in housed.own(home, touched))
        return device if at_home and hardware.compiles_for(device) else None

    def culprit(self, worker: int, bad: Sequence[str]) -> str:
        return self._peers.every_device()[worker] if self._several else self._devices[worker]

    def update_devices(self) -> dict[tuple[int, str], str]:
        nodes = {node: at for update in self._placed for node, at in update.owner_of_node.items()}
        return {(0, node): self.every_device[at] for node, at in nodes.items()} if self._owners else {}

    def links(self) -> Links:
        """Gradients to where they are summed; back the sums (mirrored), or the parameters for replicas."""
        devices, mode = self._devices, self._settings.mode
        links: Links = defaultdict(float)
        moved, with_owners = self._summation.moved(self._traces.specs, self._owner_positions())
        for (source, target), size in moved.items():
            links[devices[source], devices[target]] += size
        if mode == "mirrored":
            return dict(links)
        for number, parameter in enumerate(self._traces.parameters):
            home = self.every_device[self._owners.get(parameter.ref(), 0)]
            if home != devices[0] and number not in with_owners:
                links[devices[0], home] += num_bytes(parameter)  # the gradient, to who updates it
            for device in devices:
                if device != home:
                    links[home, device] += num_bytes(parameter)
        return dict(links)
