"""Cuts a trace at the stages of a pipeline: forward and backward of each, as functions.

The leg of a node is that of the last mark before it. What comes before all marks (variables that are
read, constants, labels and what is made of them) goes to the leg that needs it first, so that it is
computed on the device where it is used.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from graphlib import TopologicalSorter
from typing import Any

from colonnade.errors import Problem
from colonnade.run.trace.stage_marks import stage_of
from colonnade.run.trace.traced import Traced
from colonnade.run.trace_cut.subgraph import CuttableGraph, Subgraph, node_of


class StageCut:
    """The parts of a trace, by leg, and which stages use which variable."""

    def __init__(self, traced: Traced, num_stages: int, *, on_cards: bool = False) -> None:
        self._graph, self._num_stages = CuttableGraph(traced), num_stages
        self._marks = traced.stage_marks.marks(traced.concrete.graph)
        self._outputs = [tensor.name for tensor in traced.concrete.outputs]
        self._sources = self._needed()
        self._leg = self._assigned()
        used = sorted(set(self._leg.values()))
        members = {leg: self._members(leg) for leg in used}
        inputs = {leg: self._graph.inputs(names) for leg, names in members.items()}
        wanted = {*self._outputs, *(name for names in inputs.values() for name in names)}
        self.parts: dict[int, Subgraph] = {
            leg: self._graph.part(
                members[leg], inputs[leg], self._made(leg, wanted), stamped=True, on_card=on_cards
            )
            for leg in used
        }
        self.users = self._users(traced, inputs)

    def tensor(self, name: str) -> Any:
        """A tensor of the trace."""
        return self._graph.tensor(name)

    def stage(self, output: str) -> int:
        """The stage that makes a tensor."""
        return stage_of(self._leg.get(node_of(output), 0), self._num_stages)

    def _needed(self) -> dict[str, list[str]]:
        """The nodes that lead to a result or have an effect, each with those that it depends on.

        TensorFlow lets every result wait for all effects of a function. Here a result waits for none, or
        it would have to pass by the device of the last one; whoever runs the legs waits for them.
        """
        results = {node_of(output) for output in self._outputs}
        sources = {
            name: [node_of(i) for i in node.input if name not in results or not i.startswith("^")]
            for name, node in self._graph.nodes.items()
        }
        needed: dict[str, list[str]] = {}
        waiting = [*results, *(name for name in sources if self._graph.has_effect(name))]
        while waiting:
            name = waiting.pop()
            if name not in needed:
                needed[name] = sources[name]
                waiting += sources[name]
        return needed

    def _assigned(self) -> dict[str, int]:
        # Not in the order of the GraphDef: the gradient of a loop gives the loop inputs that come later.
        order = list(TopologicalSorter(self._sources).static_order())
        leg_of = self._after_marks(order)
        self._before_marks(order, leg_of)
        self._aside(order, leg_of)
        return leg_of

    def _after_marks(self, order: Sequence[str]) -> dict[str, int]:
        """What depends on a mark, also by a control input, is as late as the latest of them."""
        leg_of: dict[str, int] = {}
        for name in order:
            legs = [leg_of[source] for source in self._sources[name] if source in leg_of]
            if name in self._marks:
                legs.append(self._marks[name].target)
            if legs:
                leg_of[name] = max(legs)
        return leg_of

    def _before_marks(self, order: Sequence[str], leg_of: dict[str, int]) -> None:
        """What depends on no mark goes where it is used first; what is returned is last used at the loss."""
        needed: dict[str, list[int]] = defaultdict(list)
        for output in self._outputs:
            needed[node_of(output)].append(self._num_stages - 1)
        for name in reversed(order):
            if name not in leg_of and name not in self._graph.given and needed[name]:
                leg_of[name] = min(needed[name])
            if name in leg_of:
                # A value is made in the leg that it leaves, and marked in the one that it enters.
                leg = self._marks[name].source if name in self._marks else leg_of[name]
                for source in self._sources[name]:
                    needed[source].append(leg)

    def _aside(self, order: Sequence[str], leg_of: dict[str, int]) -> None:
        """What nothing depends on, such as a counter that goes up: not before what it depends on itself.

        All that leads to such an effect happens in the leg of the effect. A value read earlier could
        be an old one, because other micro-batches pass in between.
        """
        aside = [name for name in order if name not in leg_of and name not in self._graph.given]
        earliest: dict[str, int] = {}
        used: dict[str, list[str]] = defaultdict(list)
        for name in aside:
            legs = [leg_of.get(s, earliest.get(s, 0)) for s in self._sources[name]]
            earliest[name] = max(legs, default=0)
            for source in self._sources[name]:
                used[source].append(name)
        for name in reversed(aside):
            leg_of[name] = min((leg_of[user] for user in used[name]), default=earliest[name])

    def _members(self, leg: int) -> set[str]:
        own = {name for name, at in self._leg.items() if at == leg and name not in self._graph.given}
        return self._graph.with_constants(own)

    def _made(self, leg: int, wanted: set[str]) -> list[str]:
        return [name for name in wanted if self._leg.get(node_of(name)) == leg]

    def _users(self, traced: Traced, inputs: dict[int, list[str]]) -> dict[Any, set[int]]:
        """By the ref of a variable: the stages that use it."""
        handles = traced.concrete.inputs[len(traced.concrete.inputs) - len(traced.captures) :]
        users: dict[Any, set[int]] = {}
        for tensor, capture in zip(handles, traced.captures, strict=True):
            if capture.variable is not None:
                legs = [leg for leg, names in inputs.items() if tensor.name in names]
                users[capture.variable.ref()] = {stage_of(leg, self._num_stages) for leg in legs} or {0}
        return users


def untied(legs: StageCut, tied: set[Any]) -> Iterator[Problem]:
    """Variables that several stages use without being declared tied."""
    for ref, stages in legs.users.items():
        if len(stages) > 1 and ref not in tied:
            rule = f"is used by stages {', '.join(map(str, sorted(stages)))}, and is not declared tied"
            fix = "Pass tied=[...] with this variable or its layer; for weight decay use Trainer(penalty=...)"
            yield Problem("variable", ref.deref().name, rule, fix)
