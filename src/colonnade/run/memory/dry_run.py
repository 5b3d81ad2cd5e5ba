"""Measures the memory of functions by running them once on zeros, in a process of its own.

TensorFlow tells what its allocator on the CPU has given out only if it is started for that. So traced
functions are written into a folder, and this module, run as a program, reads them, makes variables and inputs
of the same shapes, runs them and prints what the allocator said:

    python -m colonnade.run.memory.dry_run FOLDER

Nothing of the user's own process is touched.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from colonnade.errors import InvalidArgument, Problem
from colonnade.hardware.devices import without_cards
from colonnade.run.memory import recurrent
from colonnade.run.move.num_bytes import num_bytes

# A second run sees no more of what TensorFlow does once, at a first call.
RUNS = 2

# Ops that put out what is there already.
PASSED_ON = ("Placeholder", "VarHandleOp", "ReadVariableOp", "Identity", "IdentityN", "Reshape")


@dataclass(frozen=True)
class Function:
    """A traced function, and the names that its inputs and outputs have in a job."""

    graph: bytes
    inputs: tuple[tuple[str, str], ...]  # the name in the graph, the name in the job
    outputs: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, concrete: Any, inputs: Sequence[str], outputs: Sequence[str]) -> "Function":
        """A concrete function with names for all that it takes and for the first outputs."""
        taken = [tensor.name for tensor in concrete.inputs]
        given = [tensor.name for tensor in concrete.outputs]
        return cls(
            concrete.graph.as_graph_def().SerializeToString(),
            tuple(zip(taken, inputs, strict=True)),
            tuple(zip(given, outputs, strict=True)),
        )


@dataclass(frozen=True)
class Input:
    """What is there from the start: a tensor, or a variable."""

    shape: tuple[int, ...]
    dtype: str
    variable: bool = False
    value: Any = None  # a NumPy array, where zeros do not do

    def plain(self) -> dict[str, Any]:
        """Without the value, as JSON takes it."""
        return {"shape": self.shape, "dtype": self.dtype, "variable": self.variable}


@dataclass(frozen=True)
class Job:
    """Functions that run one after the other, and the update at the end.

    `gradients` are, for each parameter, the name of its dense gradient, or those of the values and
    indices of a sparse one.
    """

    functions: tuple[Function, ...]
    inputs: Mapping[str, Input]
    gradients: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    optimizer: Mapping[str, Any] | None = None  # as Keras serialises it


@dataclass(frozen=True)
class Bytes:
    """What was given out before a function, at most while it ran, and after it."""

    before: int
    peak: int
    after: int


@dataclass(frozen=True)
class JobMemory:
    """What a job took of memory, in bytes."""

    functions: tuple[Bytes, ...]  # of each
    gradients: int = 0
    slots: int = 0
    update: int = 0  # at most, beyond variables, slots and gradients
    made_on: Mapping[str, int] = field(default_factory=dict)  # what ops put out, by the device they ask for


def dry_run(jobs: Sequence[Job]) -> list[JobMemory]:
    """Run jobs in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        plain = []
        for i, job in enumerate(jobs):
            for j, function in enumerate(job.functions):
                (Path(folder) / f"{i}.{j}.pb").write_bytes(function.graph)
            values = {name: spec.value for name, spec in job.inputs.items() if spec.value is not None}
            np.savez(Path(folder) / f"{i}.npz", *values.values())
            plain.append(
                {
                    "functions": [
                        {"inputs": function.inputs, "outputs": function.outputs} for function in job.functions
                    ],
                    "inputs": {name: spec.plain() for name, spec in job.inputs.items()},
                    "values": list(values),
                    "gradients": dict(job.gradients),
                    "optimizer": job.optimizer,
                }
            )
        threads = tf.config.threading
        counts = [threads.get_intra_op_parallelism_threads(), threads.get_inter_op_parallelism_threads()]
        (Path(folder) / "jobs.json").write_text(json.dumps({"jobs": plain, "threads": counts}))
        return [_memory_of(one) for one in json.loads(_run(folder).splitlines()[-1])]


def _run(folder: str) -> str:
    source = str(Path(__file__).parent.parent.parent.parent)
    settings = {
        **without_cards(os.environ),
        "PYTHONPATH": os.pathsep.join([source, *filter(None, [os.environ.get("PYTHONPATH")])]),
        "TF_CPU_ALLOCATOR_USE_BFC": "true",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    done = subprocess.run(
        [sys.executable, "-m", "colonnade.run.memory.dry_run", folder],
        capture_output=True,
        text=True,
        env=settings,
    )
    if done.returncode:
        rule = f"cannot be run on zeros in a process of its own: {_cause(done.stderr, done.returncode)}"
        fix = "Without an estimate there is no limit: leave cn.setup(memory=...) out"
        raise InvalidArgument("memory()", [Problem("fn", "a function", rule, fix)])
    return done.stdout


def _cause(stderr: str, code: int) -> str:
    """What an error of Python's says, without the lines about the graph that TensorFlow puts in between.

    >>> _cause("Traceback:\\n  File x\\nfoo.BadError: no such thing.\\n\\t [[{{node y}}]]", 1)
    'foo.BadError: no such thing'
    """
    if code < 0:
        return f"it was ended by signal {-code}"
    lines = stderr.rstrip().splitlines() or ["no reason given"]
    named = [i for i, line in enumerate(lines) if re.match(r"[A-Za-z_.]+(Error|Exception)\b", line)]
    about = ("Detected at", "<stack traces", "Stack trace", " ", "\t")
    message = [line for line in lines[named[-1] if named else -1 :] if line and not line.startswith(about)]
    return " ".join(message)[:400].strip().rstrip(".")


def _memory_of(plain: Mapping[str, Any]) -> JobMemory:
    return JobMemory(**{**plain, "functions": tuple(Bytes(*one) for one in plain["functions"])})


class _Runner:
    """Runs jobs, in the process that was started for them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        plain = json.loads((folder / "jobs.json").read_text())
        tf.config.threading.set_intra_op_parallelism_threads(plain["threads"][0])
        tf.config.threading.set_inter_op_parallelism_threads(plain["threads"][1])
        tf.config.set_soft_device_placement(True)
        self.jobs = plain["jobs"]

    def run(self, number: int) -> dict[str, Any]:
        job = self.jobs[number]
        variables = {name: _made(**spec) for name, spec in job["inputs"].items() if spec["variable"]}
        with np.load(self._folder / f"{number}.npz") as kept:
            known = {name: kept[f"arr_{i}"] for i, name in enumerate(job["values"])}
        runnables = [self._runnable(number, i, function) for i, function in enumerate(job["functions"])]
        runs, update, slots, gradients = [], 0, 0, 0
        for turn in range(RUNS):
            allocated, values = self._run_functions(job, runnables, variables, known)
            runs.append(allocated)
            # By their sizes: the allocator also gives out more than it was asked for.
            gradients = sum(num_bytes(values[name]) for names in job["gradients"].values() for name in names)
            if job["optimizer"] is not None:
                if not turn:
                    slots = self._build(job, variables)
                update = max(update, self._update(job, values))
        functions = [
            (min(b), max(p), min(a))
            for b, p, a in (zip(*turns, strict=True) for turns in zip(*runs, strict=True))
        ]
        made_on = self._made_on(number, job)
        return {
            "functions": functions,
            "gradients": gradients,
            "slots": slots,
            "update": update,
            "made_on": made_on,
        }

    def _run_functions(
        self, job: Any, runnables: Any, variables: Any, known: Any
    ) -> tuple[list[tuple[int, int, int]], Any]:
        last: dict[str, int] = {}
        for i, function in enumerate(job["functions"]):
            last.update({name: i for _, name in function["inputs"]})
        last.update({name: len(runnables) for names in job["gradients"].values() for name in names})
        values: dict[str, Any] = {}
        allocated = []
        origin = _current()
        for i, (function, runnable) in enumerate(zip(job["functions"], runnables, strict=True)):
            before = _reset()
            for _, name in function["inputs"]:
                if name not in variables and name not in values:
                    given = known.get(name)
                    values[name] = _made(**job["inputs"][name]) if given is None else tf.constant(given)
            taken = [variables[n].handle if n in variables else values[n] for _, n in function["inputs"]]
            outputs = runnable(*taken)
            peak = _info("peak")
            named = zip((name for _, name in function["outputs"]), outputs, strict=True)
            values |= {name: value for name, value in named if last.get(name, -1) > i}
            values = {name: value for name, value in values.items() if last.get(name, -1) > i}
            del taken, outputs
            allocated.append((before - origin, peak - origin, _current() - origin))
        return allocated, values

    def _made_on(self, number: int, job: Any) -> Counter[str]:
        """What ops put out beside gradients, where the shapes of the inputs tell how much that is."""
        made_on: Counter[str] = Counter()
        gradients = {name for names in job["gradients"].values() for name in names}
        for i, function in enumerate(job["functions"]):
            with tf.Graph().as_default() as graph:
                known_inputs = ((name, job["inputs"].get(known)) for name, known in function["inputs"])
                given = {name: _placeholder(**spec) for name, spec in known_inputs if spec is not None}
                wanted = [name for name, known in function["outputs"] if known in gradients]
                ends = tf.graph_util.import_graph_def(
                    self._graph(number, i), input_map=given, return_elements=wanted, name=""
                )
            apart = {_source(tensor).op for tensor in ends}
            for op in graph.get_operations():
                if op not in apart and op.type not in PASSED_ON:
                    made_on[op.device] += sum(
                        num_bytes(tensor) for tensor in op.outputs if tensor.consumers()
                    )
        return made_on

    def _graph(self, number: int, position: int) -> Any:
        stored = (self._folder / f"{number}.{position}.pb").read_bytes()
        return recurrent.replaced(tf.compat.v1.GraphDef.FromString(stored))

    def _runnable(self, number: int, position: int, function: Any) -> Any:
        graph = self._graph(number, position)
        nodes = {node.name: node for node in graph.node}
        given_away = {f"^{name.partition(':')[0]}" for name, _ in function["inputs"]}
        for node in graph.node:  # nothing takes the place of an input that is only waited for
            node.input[:] = [name for name in node.input if name not in given_away]
        specs = []
        for name, _ in function["inputs"]:
            node = nodes[name.partition(":")[0]]
            shape = tf.TensorShape(node.attr["shape"].shape)
            specs.append(tf.TensorSpec(shape, tf.dtypes.as_dtype(node.attr["dtype"].type)))

        def imported(*args: Any) -> Any:
            given = {name: arg for (name, _), arg in zip(function["inputs"], args, strict=True)}
            wanted = [name for name, _ in function["outputs"]]
            return tf.graph_util.import_graph_def(graph, input_map=given, return_elements=wanted, name="")

        # Not a tf.function, which does not know the functions that come with an imported graph, and not
        # called as a raw op, which would not be optimised and so take another amount.
        return tf.compat.v1.wrap_function(imported, specs)

    def _build(self, job: Any, variables: Any) -> int:
        self._parameters = [variables[name] for name in job["gradients"]]
        self._optimizer = keras.optimizers.deserialize(job["optimizer"])
        self._optimizer.build(self._parameters)

        @tf.function(autograph=False)
        def apply(gradients: Any) -> None:
            self._optimizer.apply(gradients, self._parameters)

        self._apply = apply
        return sum(num_bytes(variable.value) for variable in self._optimizer.variables)

    def _update(self, job: Any, values: dict[str, Any]) -> int:
        gradients = []
        for names, parameter in zip(job["gradients"].values(), self._parameters, strict=True):
            parts = [values[name] for name in names]
            gradients.append(
                tf.reshape(parts[0], parameter.shape)
                if len(parts) == 1
                else tf.IndexedSlices(*parts, tf.constant(parameter.shape.as_list()))
            )
        before = _reset()
        self._apply(gradients)
        return max(0, _info("peak") - before)


def _made(shape: Sequence[int], dtype: str, variable: bool) -> Any:
    value = tf.fill(shape, "") if dtype == "string" else tf.zeros(shape, dtype)
    return tf.Variable(value, trainable=value.dtype.is_floating) if variable else value


def _placeholder(shape: Sequence[int], dtype: str, variable: bool) -> Any:
    if variable:
        return tf.raw_ops.VarHandleOp(dtype=dtype, shape=shape)
    return tf.compat.v1.placeholder(dtype, shape)


def _source(tensor: Any) -> Any:
    while tensor.op.type in PASSED_ON and tensor.op.inputs:
        tensor = tensor.op.inputs[0]
    return tensor


def _info(what: str) -> int:
    return int(tf.config.experimental.get_memory_info("CPU:0")[what])


def _current() -> int:
    return _info("current")


def _reset() -> int:
    tf.config.experimental.reset_memory_stats("CPU:0")
    return _current()


if __name__ == "__main__":
    runner = _Runner(Path(sys.argv[1]))
    print(json.dumps([runner.run(i) for i in range(len(runner.jobs))]))
