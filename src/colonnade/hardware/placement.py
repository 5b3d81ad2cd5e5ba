"""`cn.placement`: which op ran on which device, from the graph as TensorFlow has placed it."""

import itertools
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf
from rich.console import Console
from rich.table import Table

from colonnade.describe.pictures import html
from colonnade.errors import PlacementError
from colonnade.hardware.profile import profile

# Ops that the runtime adds to move values and to drive loops; they compute nothing.
PLUMBING = re.compile(
    "_Arg|_Retval|_(Host)?(Send|Recv)|_EagerConst|Const|NoOp|Placeholder|Enter|Exit|Merge|_?SwitchN?|"
    "NextIteration|LoopCond"
)
# These run where the variable lives, wherever they are asked for.
VARIABLE_ACCESS = re.compile(
    r"VarHandleOp|ReadVariable|AssignVariable|AssignAdd|AssignSub|VariableShape|Resource"
)
# A notebook names so many of the ops that ran elsewhere than asked.
MOST_MOVED = 12
# A call of a function, as it shows in the names of the ops inside.
CALL = re.compile(r"(Stateful)?PartitionedCall(_\d+)?/")
LOCAL = "/job:localhost/replica:0/task:0"
# The names under which a tape builds its ops, and those of Colonnade's replicas.
BACKWARD = re.compile(r"(^|/)(gradient_tape|gradients|replica_\d+_on_\w+_grad)/")


@dataclass(frozen=True)
class PlacedOp:
    """An op of a function that was run: `calls` is how often it was executed in that run.

    TensorFlow's profiler does not note the kernels of cards (2.21); there it is None.
    """

    name: str
    op: str
    asked: str
    actual: str
    phase: str  # forward or backward
    calls: int | None

    @property
    def moved(self) -> bool:
        return bool(self.asked) and not _same(self.asked, self.actual)


@dataclass(frozen=True)
class Placement:
    """Where the ops of one run were executed; `variables` are the accesses to variables, apart."""

    ops: tuple[PlacedOp, ...]
    variables: tuple[PlacedOp, ...]

    @property
    def moved(self) -> tuple[PlacedOp, ...]:
        """The ops that ran elsewhere than asked: the device is not there, or has no kernel for them."""
        return tuple(row for row in self.ops if row.moved)

    def devices(self, phase: str | None = None) -> tuple[str, ...]:
        """The devices that ran at least one op, in order."""
        return tuple(sorted({row.actual for row in self.ops if phase in (None, row.phase)}, key=_by_number))

    def table(self) -> Table:
        """A line for each op, for Rich to print."""
        table = Table(title="Where each op ran", title_justify="left")
        for column in ("op", "type", "asked", "ran on", "phase"):
            table.add_column(column, overflow="fold")
        table.add_column("calls", justify="right")
        for kind, rows in (("", self.ops), ("variable access", self.variables)):
            if kind and rows:
                table.add_section()
            for row in rows:
                style = "yellow" if row.moved and not kind else None
                cells = (
                    re.sub(CALL, "", row.name),
                    row.op,
                    short(row.asked),
                    short(row.actual),
                    kind or row.phase,
                )
                table.add_row(*cells, "" if row.calls is None else str(row.calls), style=style)
        return table

    def _repr_html_(self) -> str:
        """In a notebook: how many ops ran where, what was moved, and every op behind a fold."""
        phases = list(dict.fromkeys(row.phase for row in self.ops))
        counts = Counter((row.actual, row.phase) for row in self.ops)
        summary = [[short(d), *(counts[d, phase] for phase in phases)] for d in self.devices()]
        table = html.table(["ops by device", *phases], summary)
        moved = [
            f"{row.op} was asked for on {short(row.asked)} and ran on {short(row.actual)}."
            for row in self.moved[:MOST_MOVED]
        ]
        if len(self.moved) > MOST_MOVED:
            moved.append(f"So did {len(self.moved) - MOST_MOVED:,} more ops: `moved` lists them.")
        every = [
            (re.sub(CALL, "", row.name), row.op, short(row.asked), short(row.actual), row.phase, row.calls)
            for row in (*self.ops, *self.variables)
        ]
        listed = html.table(["op", "type", "asked", "ran on", "phase", "calls"], every)
        fold = f"<details><summary>{len(every)} ops and accesses to variables</summary>{listed}</details>"
        return table + html.paragraphs(moved) + fold

    def __str__(self) -> str:
        console = Console(width=120, highlight=False)
        with console.capture() as text:
            console.print(self.table())
            for row in self.moved:
                console.print(f"{row.op} was asked for on {short(row.asked)} and ran on {short(row.actual)}.")
        return text.get().rstrip("\n")


def short(device: str) -> str:
    """`/job:localhost/replica:0/task:0/device:CPU:1` as `CPU:1`; other jobs keep their name."""
    return re.sub(r"^(/job:localhost)?(/replica:0)?(/task:0)?/?(device:)?", "", device)


_reports = itertools.count()


def placement(fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Placement:
    """Run `fn` once and report which op ran where, ops of called functions and loops included.

    Args:
        fn: a `tf.function`, or any function of TensorFlow code; its side effects happen once.
        *args, **kwargs: what it is called with.

    Returns:
        A `Placement`; it prints as a table. Ops that TensorFlow's optimiser removed did not run
        and are not listed; nor are ops inside tf.data pipelines, which run on the host. The backward
        ops of a `tf.custom_gradient` of the user's own count as forward: nothing marks them.

    Example:
        >>> import colonnade as cn, tensorflow as tf
        >>> def double(x):
        ...     with tf.device("/device:CPU:1"):
        ...         return 2 * x
        >>> cn.placement(double, tf.ones(3)).devices()
        ('/device:CPU:1',)
    """
    if not tf.executing_eagerly() or tf.config.functions_run_eagerly():
        raise PlacementError(
            "placement() runs a graph: call it in eager code, with tf.functions not run eagerly."
        )
    # Only a function that is new to the runtime is reported, so the call is wrapped in one. Its name
    # is unique, so that ops of other threads are not counted.
    mark = f"placement_{next(_reports)}"

    @tf.autograph.experimental.do_not_convert
    def marked(*args: Any, **kwargs: Any) -> Any:
        with tf.name_scope(mark):
            return converted(*args, **kwargs)

    converted = fn if hasattr(fn, "get_concrete_function") else tf.function(fn)
    wrapped = tf.function(marked, autograph=False)
    asked = dict(_asked(wrapped.get_concrete_function(*args, **kwargs).graph.as_graph_def()))
    _refuse_missing(asked)
    placed, calls = _run(lambda: wrapped(*args, **kwargs))
    nodes = [node for node in placed if node.name.startswith(f"{mark}/")]
    if not nodes:
        raise PlacementError("TensorFlow reported no placed graph: functions compiled by XLA have none.")
    backward = _backward(nodes)
    rows = [
        PlacedOp(
            name=_own(node.name),
            op=node.op,
            asked=asked.get(_stem(node.name), ""),
            actual=node.device.removeprefix(LOCAL),
            phase="backward" if node.name in backward else "forward",
            calls=calls[node.name] or None,
        )
        for node in nodes
        if not PLUMBING.fullmatch(node.op) and (calls[node.name] or _on_card(node))
    ]
    rows.sort(key=lambda row: (_by_number(row.actual), row.phase == "backward"))
    return Placement(
        ops=tuple(row for row in rows if not VARIABLE_ACCESS.search(row.op)),
        variables=tuple(row for row in rows if VARIABLE_ACCESS.search(row.op)),
    )


def _run(call: Callable[[], Any]) -> tuple[list[Any], Counter[str]]:
    """Run a new function; its placed nodes, and how often each node was executed."""
    with tempfile.TemporaryDirectory() as folder:
        writer = tf.summary.create_file_writer(folder)
        tf.summary.trace_on(graph=True, profiler=False)
        try:
            calls = Counter(event.name for event in profile(call))
        except tf.errors.AlreadyExistsError:
            raise PlacementError(
                "placement() needs TensorFlow's profiler, which is running: stop it first."
            ) from None
        except (tf.errors.InvalidArgumentError, tf.errors.NotFoundError) as error:
            raise _unplaced(error) from error
        finally:
            with writer.as_default(), tf.summary.record_if(True):
                tf.summary.trace_export("placement", step=0)
            writer.close()
        nodes = [
            node
            for path in sorted(Path(folder).glob("events*"))
            for graph in _placed_graphs(str(path))
            for node in graph.node
        ]
    return nodes, calls


def _on_card(node: Any) -> bool:
    """Whether an op of a card ran, of which no call is known; an identity only hands on what another made."""
    return "GPU" in node.device and node.op != "Identity"


def _placed_graphs(path: str) -> Iterator[Any]:
    for record in tf.data.TFRecordDataset(path):
        for value in tf.compat.v1.Event.FromString(record.numpy()).summary.value:
            for data in value.tensor.string_val:
                for function in tf.compat.v1.RunMetadata.FromString(data).function_graphs:
                    yield from function.partition_graphs


def _asked(graph: Any) -> Iterator[tuple[str, str]]:
    """Node names as they are after inlining, with the device asked for: the node's own, else its caller's."""
    functions = {function.signature.name: function for function in graph.library.function}

    def walk(nodes: Any, prefix: str, caller: str) -> Iterator[tuple[str, str]]:
        for node in nodes:
            device = node.device or caller
            yield prefix + node.name, device
            for key, attribute in node.attr.items():
                inner = functions.get(attribute.func.name)
                if inner is not None:
                    branch = {"f": "", "then_branch": "then/", "else_branch": "else/"}.get(key, f"{key}/")
                    yield from walk(inner.node_def, f"{prefix}{node.name}/{branch}", device)

    return walk(graph.node, "", "")


def _stem(name: str) -> str:
    """A placed node's name without the counters that inlining loops and branches adds."""
    return re.sub(r"/_\d+(?=/|$)", "", name)


def _own(name: str) -> str:
    """The name inside the user's function: without the call that leads to it."""
    inner = re.sub(r"^placement_\d+/", "", name)
    first = CALL.match(inner)
    return inner[first.end() :] if first else inner


def _backward(nodes: list[Any]) -> set[str]:
    """The nodes that a tape built, and all that use what they compute, over copies between devices too."""
    sends = {node.attr["tensor_name"].s: node.name for node in nodes if node.op.endswith("Send")}
    users: dict[str, list[str]] = {}
    for node in nodes:
        # An order of execution is no use of a value, and what comes round in a loop is the next turn's.
        if node.op == "NextIteration":
            continue
        sources = [source.partition(":")[0] for source in node.input if not source.startswith("^")]
        if node.op.endswith("Recv"):
            sources.append(sends.get(node.attr["tensor_name"].s, ""))
        for source in sources:
            users.setdefault(source, []).append(node.name)
    backward: set[str] = set()
    waiting = [node.name for node in nodes if BACKWARD.search(node.name) and not PLUMBING.fullmatch(node.op)]
    while waiting:
        name = waiting.pop()
        if name not in backward:
            backward.add(name)
            waiting.extend(users.get(name, ()))
    return backward


def _same(asked: str, actual: str) -> bool:
    """Whether a device satisfies a request, which may leave parts open."""
    wanted, got = tf.DeviceSpec.from_string(asked), tf.DeviceSpec.from_string(actual)
    local = tf.DeviceSpec(job="localhost", replica=0, task=0)
    got = local.make_merged_spec(got)
    return all(
        getattr(wanted, part) in (None, getattr(got, part))
        for part in ("job", "replica", "task", "device_type", "device_index")
    )


def _by_number(device: str) -> tuple[str, int]:
    spec = tf.DeviceSpec.from_string(device)
    return spec.device_type, spec.device_index


# TensorFlow's words for an op that cannot be placed: the op, and the device asked for.
UNPLACED = (
    r"Cannot assign a device for operation (?P<op>[^\s:]+):"
    r".*?(?:assigned to|device specification) '?(?P<device>[^\s']+)",
    r"No OpKernel was registered to support Op '(?P<op>\w+)'.*?on node .*?device='(?P<device>[^']*)'",
)


def _unplaced(error: Exception) -> Exception:
    """An error about placement made short; any other as it is."""
    for pattern in UNPLACED:
        match = re.search(pattern, str(error), re.S)
        if match:
            return _cannot_run(_own(match["op"]), match["device"])
    return error


def _refuse_missing(asked: dict[str, str]) -> None:
    """Without soft placement, name the op that asks for a device that is not there."""
    have = [device.name for device in tf.config.list_logical_devices()]
    for name, device in asked.items():
        local = tf.DeviceSpec.from_string(device).job in (None, "localhost")
        if local and not tf.config.get_soft_device_placement() and not any(_same(device, h) for h in have):
            raise _cannot_run(_own(name), device)


def _cannot_run(op: str, device: str) -> PlacementError:
    have = ", ".join(d.name for d in tf.config.list_logical_devices())
    return PlacementError(
        f"op {op} is asked for on {device}, which is not there or has no kernel for it "
        f"(devices: {have}). Change the tf.device around it, or call cn.setup(soft_placement=True)."
    )
