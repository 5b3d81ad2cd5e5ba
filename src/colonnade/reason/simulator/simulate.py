"""Simulates a training step of a plan on a topology: what every device and every link does, and when.

    stages      tasks on devices, messages on links                    reason.simulator.stages
    replicas    the reduction, along the engine's order or as a ring   reason.simulator.replicas
    modes       local steps and joins; reads and updates in a race     reason.simulator.modes

Everything is driven by the generators that the engine executes, so what is predicted and what is run
cannot drift apart. Devices and links are resources that do one thing at a time; virtual devices share the
cores of a processor.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from colonnade.describe.layer_cost import LayerCost
from colonnade.describe.link import Device
from colonnade.describe.plan import Plan, even_stages, spans
from colonnade.describe.timeline import Event, Timeline
from colonnade.describe.topology import Topology
from colonnade.describe.workload import Workload
from colonnade.errors import Problem, check
from colonnade.reason.schedules.schedule import SCHEDULES, interleaved
from colonnade.reason.simulator import layer_time, modes
from colonnade.reason.simulator.memory_need import Need, needs
from colonnade.reason.simulator.pool import capacity_of
from colonnade.reason.simulator.replicas import Reduction, reduce_replicas
from colonnade.reason.simulator.runtime import ENGINE, Runtime
from colonnade.reason.simulator.simulation import Simulation
from colonnade.reason.simulator.stages import Ran, StageCosts, exchanged_bytes, run, run_shared
from colonnade.reason.transfers.cost import all_reduce, copy, group_of

# Steps that are drawn where devices jitter; their mean counts.
DRAWN = 64


def simulate(
    topology: Topology,
    workload: Workload,
    plan: Plan,
    runtime: Runtime = ENGINE,
    *,
    seed: int = 0,
    events: bool = True,
) -> Simulation:
    """Simulate a step.

    Args:
        topology: the machine, or machines.
        workload: what a step costs.
        plan: who does what.
        runtime: how the software does it; Colonnade's engine by default.
        seed: of what is drawn, where devices jitter.
        events: whether to keep a timeline; without one it is quicker.

    Example:
        >>> import colonnade as cn
        >>> from colonnade.describe.link import Device
        >>> cards = cn.Topology([Device("Tesla V100")] * 4, cn.Topology.uniform(4, "NV2").links)
        >>> net = cn.Workload.convnet(parameters=25_000_000, flops=8e9, batch=256)
        >>> one, four = (simulate(cards, net, cn.Plan(batch=256, data=n)).step for n in (1, 4))
        >>> 3 < one / four < 4
        True
    """
    check("simulate()", misfits(topology, workload, plan))
    return _PlannedStep(topology, workload, plan, runtime, np.random.default_rng(seed), events).simulation()


def misfits(topology: Topology, workload: Workload, plan: Plan) -> list[Problem]:
    """What does not go together."""
    problems = []
    if max(plan.devices) >= len(topology):
        rule = f"the plan is for other devices: there are {len(topology)} here"
        problems.append(Problem("plan", f"device {max(plan.devices)}", rule, "Plan for this topology"))
    stages = plan.stage * plan.chunks
    if plan.layers is not None and len(plan.layers) != len(workload.layers):
        rule = f"the plan deals out {len(plan.layers)} layers, and the workload has {len(workload.layers)}"
        problems.append(Problem("plan", plan.layout, rule, "Plan for this workload"))
    elif stages > len(workload.layers):
        rule = f"has more stages than the workload has layers, {len(workload.layers)}"
        problems.append(Problem("plan", plan.layout, rule, "Use fewer stages"))
    if plan.micro_batches * plan.data > plan.batch:
        rule = f"cuts a batch of {plan.batch} into more than {plan.batch} parts"
        problems.append(Problem("plan", plan.layout, rule, "Use fewer micro-batches"))
    if plan.chunks > 1 and plan.micro_batches % plan.stage:
        rule = f"takes micro-batches in groups of {plan.stage}, as many as there are stages on devices"
        problems.append(Problem("plan", plan.layout, rule, "Use a multiple of that"))
    return problems


class _PlannedStep:
    """One simulation: what the plan says, worked out for the topology."""

    def __init__(
        self,
        topology: Topology,
        workload: Workload,
        plan: Plan,
        runtime: Runtime,
        rng: np.random.Generator,
        events: bool,
    ) -> None:
        self.topology, self.workload, self.plan = topology, workload, plan
        self.runtime, self.rng, self.events = runtime, rng, events
        stages = plan.layers or even_stages(len(workload.layers), plan.stage * plan.chunks)
        self.parts = [workload.layers[b:e] for b, e in spans(stages, plan.stage * plan.chunks)]
        self.capacity = capacity_of(topology, workload, plan)
        self.kinds = list(dict.fromkeys(topology.devices[d] for d in plan.devices))
        self.rows = self._shares()  # for each replica, examples of a micro-batch
        self.moved = 0
        self.busiest = 0

    def simulation(self) -> Simulation:
        if self.plan.sync == "asynchronous":
            return self._asynchronous()
        paces = self._paces()
        replicas = self._replicas()
        different = list({id(ran): ran for ran in replicas}.values())
        compute = max(end for ran in different for _, _, end, _ in ran)
        reduction = self._reduction(paces, replicas, compute)
        busy = max(_busy(ran, self.plan.stage) for ran in different)
        update = self._update()
        local = self.plan.sync in ("local", "diloco", "elastic")
        exposed = reduction.exposed / (self.plan.every if local else 1)
        waited = reduction.waited + max(0.0, compute - busy)
        step = compute + reduction.waited + exposed + update + self.workload.overhead
        moved = self.moved + reduction.moved / (self.plan.every if local else 1)
        return Simulation(
            step,
            self._timeline(replicas, reduction, compute, update),
            min(busy, compute),
            waited,
            exposed,
            update,
            self.workload.overhead,
            round(moved),
            max(self.busiest, reduction.busiest, exchanged_bytes(self.parts, self.plan, self.runtime.wire)),
            max((need.total for need in self._needs()), default=0),
            self.workload.fits_known,
        )

    def _needs(self) -> list[Need]:
        largest = None if self.plan.shares == "even" else max(self.rows) * self.plan.micro_batches
        return needs(self.workload, self.plan, largest)

    def _shares(self) -> list[float]:
        """How many examples each replica gets of a micro-batch: as many, or by how fast it is."""
        plan, even = self.plan, self.plan.batch / self.plan.data / self.plan.micro_batches
        if plan.shares == "even":
            # Replicas wait for the one with the largest slice; those that share cores leave them to it.
            largest = -(-plan.batch // plan.data) / plan.micro_batches
            return [even if self.capacity is not None else largest] * plan.data
        slow, first = dict(self.runtime.slow), [plan.device(d) for d in range(plan.data)]
        devices = [self.topology.devices[d] for d in first]
        return layer_time.slices(self.workload, devices, even * plan.data, [slow.get(d, 1.0) for d in first])

    def _replicas(self) -> list[list[Ran]]:
        """What runs when in every replica, without jitter; equal replicas are simulated once."""
        seen: dict[Any, list[Ran]] = {}
        ran = []
        for d in range(self.plan.data):
            kind = self._kind(d)
            if kind not in seen:
                seen[kind] = self._replica(d)
            ran.append(seen[kind])
        return ran

    def _kind(self, data: int) -> Any:
        """Equal for replicas that take equally long."""
        plan, slow = self.plan, dict(self.runtime.slow)
        row = [plan.device(data, stage) for stage in range(plan.stage)]
        devices = [self.topology.devices[d] for d in row]
        figures = tuple((d.name, d.flops, d.achieved, d.cores) for d in devices)
        links = tuple(self.topology.links[a][b] for a, b in pairwise(row))
        across = tuple(self.topology.machine_of(plan.device(data, 0, w)) for w in range(plan.width))
        return figures, links, tuple(slow.get(d, 1.0) for d in row), len(set(across)), self.rows[data]

    def _paces(self) -> np.ndarray:
        """For each drawn step and each replica, how many times as long it takes."""
        if not self.runtime.jitter or self.plan.data == 1 or self.capacity is not None:
            return np.ones((1, self.plan.data))
        return np.maximum(self.rng.normal(1.0, self.runtime.jitter, (DRAWN, self.plan.data)), 0.5)

    def _replica(self, data: int) -> list[Ran]:
        """The stages of one replica, without jitter."""
        plan = self.plan
        slow = dict(self.runtime.slow)
        paces = [slow.get(plan.device(data, stage), 1.0) for stage in range(plan.stage)]
        costs = self._costs(data)
        if plan.chunks > 1:
            slots = interleaved(plan.stage, plan.micro_batches, plan.chunks)
        else:
            slots = SCHEDULES[plan.schedule](plan.stage, plan.micro_batches)
        if self.capacity is None:
            return run(slots, costs, paces)
        return run_shared(slots, costs, self.capacity, paces, plan.data)

    def _costs(self, data: int) -> StageCosts:
        plan, rows = self.plan, self.rows[data]
        forward, backward, onward, again = [], [], [], []
        for k, layers in enumerate(self.parts):
            stage = k % plan.stage
            device = self.topology.devices[plan.device(data, stage)]
            ahead = back = repeated = 0.0
            for layer in layers:
                took = layer_time.seconds(self.workload, layer, device, rows, plan.width, plan.sequence)
                exchange = self._exchange(layer, data, stage)
                ahead += took.forward + exchange
                back += took.backward + exchange
                if plan.recompute in ("full", "stage"):
                    repeated += took.forward + exchange
                elif plan.recompute == "selective":
                    back += layer_time.cheap_seconds(self.workload, layer, device, rows, plan.width)
                back += self._accumulation(layer, device)
            forward.append(ahead)
            backward.append(back + repeated)
            again.append(repeated)
            if k + 1 < len(self.parts):
                onward.append(self._onward(layers[-1], data, stage))
        early = tuple(again) if self.runtime.early else ()
        return StageCosts(tuple(forward), tuple(backward), tuple(onward), plan.stage, early)

    def _accumulation(self, layer: LayerCost, device: Device) -> float:
        """Seconds to add a micro-batch's gradients to those before it; the first one's are the sum."""
        size, whole = self.workload.dense_gradient(layer), self.workload.gradient_bytes
        later = 1 - 1 / self.plan.micro_batches
        if not whole or not later or not self.workload.addition:
            return 0.0
        return layer_time.addition_seconds(self.workload, device) * later * size / whole

    def _exchange(self, layer: LayerCost, data: int, stage: int) -> float:
        """Seconds in which the devices that a layer is split over sum up what they have."""
        plan = self.plan
        if plan.width == 1 or not layer.exchanged:
            return 0.0
        members = [plan.device(data, stage, w) for w in range(plan.width)]
        group = group_of(self.topology, members, self._sharing(members, plan.data * plan.stage))
        size = layer.exchanged * self.rows[data] * self.runtime.wire
        if data == 0:
            times = plan.micro_batches * (3 if plan.recompute in ("full", "stage") else 2) * plan.data
            self.moved += round(2 * (plan.width - 1) * size * times)
        return layer.exchanges * all_reduce(group, size / layer.exchanges, "best")

    def _onward(self, last: LayerCost, data: int, stage: int) -> float:
        """Seconds of the way from a stage to the next one."""
        plan = self.plan
        here, there = plan.device(data, stage), plan.device(data, (stage + 1) % plan.stage)
        size = last.output * self.rows[data] / (plan.width if plan.sequence else 1)
        link = self.topology.links[here][there]
        sharing = 1.0
        if link.kind == "NET":
            sharing = max(1.0, self._neighbours(here, stage) / max(1, self.topology.adapters))
        if data == 0:
            self.moved += round(2 * size * plan.micro_batches * plan.data * plan.width)
            self.busiest = max(self.busiest, round(size * plan.micro_batches))
        return copy(link, size, sharing)

    def _neighbours(self, device: int, stage: int) -> int:
        """How many devices of a stage are in the same machine, and send over its network at the same time."""
        home = self.topology.machine_of(device)
        pairs = ((d, w) for d in range(self.plan.data) for w in range(self.plan.width))
        return sum(self.topology.machine_of(self.plan.device(d, stage, w)) == home for d, w in pairs)

    def _sharing(self, members: Sequence[int], groups: int) -> int:
        """How many groups like this one use the network of a machine at once."""
        homes = Counter(self.topology.machine_of(device) for device in members)
        if len(homes) == 1:
            return 1
        first = next(iter(homes))
        inside = max(homes.values())
        box = len(self.topology.boxes[first])
        used = sum(self.topology.machine_of(d) == first for d in self.plan.devices)
        return max(1, min(groups, min(box, used) // inside))

    def _reduction(self, paces: np.ndarray, replicas: list[list[Ran]], compute: float) -> Reduction:
        plan = self.plan
        if plan.data == 1:
            return Reduction()
        sharing = self._sharing([plan.device(d) for d in range(plan.data)], plan.stage * plan.width)
        return reduce_replicas(
            self.topology, self.workload, plan, self.runtime, self.parts, paces, replicas, compute, sharing
        )

    def _update(self) -> float:
        """Seconds of the update: where variables are mirrored every device makes all of it."""
        plan, workload = self.plan, self.workload
        if not self.runtime.update:
            return 0.0
        split = (
            plan.stage * plan.width * (plan.data if plan.sharded or plan.variables == "partitioned" else 1)
        )
        each = max(layer_time.update_seconds(workload, device) for device in self.kinds) / split
        if self.capacity is None:
            return each
        makers = plan.num_devices if plan.variables == "mirrored" or plan.stage > 1 else 1
        return each * max(1.0, makers / self.capacity) if makers > 1 else each

    def _asynchronous(self) -> Simulation:
        """Devices take slices as they are free; `staleness` says who reads and applies when."""
        plan = self.plan
        seconds, forwards = [], []
        slow = dict(self.runtime.slow)
        for d in range(plan.data):
            costs = self._costs(d)
            crowd = 1.0 if self.capacity is None else max(1.0, plan.data / self.capacity)
            pace = crowd * slow.get(plan.device(d), 1.0)
            seconds.append((costs.forward[0] + costs.backward[0]) * pace)
            forwards.append(costs.forward[0] * pace)
        first = plan.device(0)
        links = self.topology.links[first]
        ways = [copy(links[plan.device(d)], self.workload.parameters) for d in range(plan.data)]
        update = layer_time.update_seconds(self.workload, self.topology.devices[first])
        raced = modes.race_of(
            seconds,
            ways,
            update,
            plan.max_staleness,
            forwards=forwards,
            pushed=self.workload.gradient_bytes,
            jitter=self.runtime.jitter,
            rng=self.rng,
        )
        step = raced.seconds_per_slice * plan.data + self.workload.overhead
        size = self.workload.parameters + self.workload.gradient_bytes
        rest = step - update - self.workload.overhead
        busy = min(float(np.mean(seconds)), rest)  # where devices were drawn fast
        return Simulation(
            step,
            Timeline(tuple(map(self._placed, raced.events)) if self.events else ()),
            busy,
            rest - busy,
            0.0,
            update,
            self.workload.overhead,
            (plan.data - 1) * size,
            size,
            max(need.total for need in self._needs()),
            self.workload.fits_known,
            raced.ages,
        )

    def _placed(self, event: Event) -> Event:
        """An event of a race, which counts replicas, on the device that the plan has for the replica."""
        name, first = self._name(self.plan.device(event.replica)), self._name(self.plan.device(0))
        return replace(event, device=name, link=event.link and f"{name} -> {first}")

    def _name(self, device: int) -> str:
        return f"device {device}"

    def _timeline(
        self, replicas: list[list[Ran]], reduction: Reduction, compute: float, update: float
    ) -> Timeline:
        if not self.events:
            return Timeline(())
        plan, staged = self.plan, self.plan.stage > 1
        events = []
        for d in range(plan.data):
            events += [
                Event(
                    self._name(plan.device(d, device, w)),
                    start,
                    end,
                    "backward" if task.backward else "forward",
                    task.stage if staged else None,
                    task.micro_batch if staged else None,
                    d,
                )
                for device, start, end, task in replicas[d]
                for w in range(plan.width)
            ]
        events += [
            Event(
                self._name(hop.target),
                hop.start,
                hop.end,
                "reduction",
                bytes=hop.bytes,
                link=f"{self._name(hop.source)} -> {self._name(hop.target)}",
            )
            for hop in reduction.hops
        ]
        done = compute + reduction.waited + reduction.exposed
        if update:
            makers = plan.devices if plan.variables == "mirrored" or staged else plan.devices[:1]
            events += [Event(self._name(device), done, done + update, "update") for device in makers]
        events.sort(key=lambda event: (event.start, event.end))
        return Timeline(tuple(events))


def _busy(ran: Sequence[Ran], num_stages: int) -> float:
    """Seconds in which the busiest stage was at work."""
    busy = np.zeros(num_stages)
    for device, start, end, _ in ran:
        busy[device] += end - start
    return float(busy.max())
