"""One contender of JAX in a process of its own: `jax_contender.py NAME MODEL DEVICES`.

`sharded` is one `jit` whose batch is sharded over the devices; `jax` is one device with all cores. A step per
call, or many in a loop of the graph: whichever is faster here. Figures are those of contender.py.
"""

import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax_models import MODELS, Chance, Model, loss, num_parameters
from tasks import BATCHES, EPSILON, LEARNING_RATE, TASKS
from turns import Turns, fastest, imported, peak

STEPS, LOOP = "a step per call", "steps in a loop of the graph"
FIRST, SECOND = 0.9, 0.999  # of Adam

State = Any


def begin(model: Model) -> State:
    """Parameters, both moments of Adam, averages, and steps made."""
    first, second = (jax.tree.map(np.zeros_like, model.parameters) for _ in range(2))
    return model.parameters, first, second, model.averages, np.zeros((), np.int32)


def train(name: str, model: Model, state: State, x: Any, y: Any) -> tuple[State, Any]:
    """One step of Adam, as Keras has it."""
    parameters, first, second, averages, made = state

    def objective(own: Any) -> Any:
        output, moved = model.apply(own, averages, x)
        return loss(name, output, y), moved

    (value, averages), gradient = jax.value_and_grad(objective, has_aux=True)(parameters)
    made = made + 1
    rate = LEARNING_RATE * jnp.sqrt(1 - SECOND**made) / (1 - FIRST**made)
    first = jax.tree.map(lambda m, g: m + (g - m) * (1 - FIRST), first, gradient)
    second = jax.tree.map(lambda v, g: v + (g * g - v) * (1 - SECOND), second, gradient)
    update = lambda p, m, v: p - rate * m / (jnp.sqrt(v) + EPSILON)  # noqa: E731
    return (jax.tree.map(update, parameters, first, second), first, second, averages, made), value


class Training:
    """The state, and two ways to make steps on it. Old states are given up to the new ones."""

    def __init__(self, name: str, devices: int) -> None:
        self._steps, self._devices = TASKS[name].per_call(devices), devices
        mesh = Mesh(jax.devices()[:devices], ("data",))
        whole = NamedSharding(mesh, PartitionSpec())
        model = MODELS[name](Chance())
        self._state = jax.device_put(begin(model), whole)
        stacked = NamedSharding(mesh, PartitionSpec(None, "data"))
        self._batches = jax.device_put(TASKS[name].batches(), stacked)
        one = NamedSharding(mesh, PartitionSpec("data"))
        self._each = [jax.device_put((self._batches[0][i], self._batches[1][i]), one) for i in range(BATCHES)]
        step = partial(train, name, model)

        def many(state: State, x: Any, y: Any) -> tuple[State, Any]:
            def turn(i: Any, carried: tuple[State, Any]) -> tuple[State, Any]:
                return step(carried[0], x[i % BATCHES], y[i % BATCHES])

            return lax.fori_loop(0, self._steps, turn, (state, jnp.zeros(())))

        self._step = jax.jit(step, donate_argnums=0, out_shardings=whole)
        self._many = jax.jit(many, donate_argnums=0, out_shardings=whole)
        self._made = 0

    def step(self) -> Any:
        self._state, value = self._step(self._state, *self._each[self._made % BATCHES])
        self._made += 1
        # Steps in flight at once deadlock: each holds a thread while it waits for the other's devices.
        return jax.block_until_ready(value) if self._devices > 1 else value

    def steps(self) -> float:
        for _ in range(self._steps):
            value = self.step()
        return float(value)

    def loop(self) -> float:
        self._state, value = self._many(self._state, *self._batches)
        return float(value)


def contend(name: str, devices: int) -> None:
    jax.devices()  # so that the start of JAX does not count, as the imports do not
    imported()
    start = time.perf_counter()
    training = Training(name, devices)
    float(training.step())
    first = time.perf_counter() - start
    training.steps()
    memory = peak()
    ways: dict[str, Callable[[], float]] = {STEPS: training.steps, LOOP: training.loop}
    chosen = fastest(ways)
    setting = f"XLA, donated state, {chosen}"
    Turns(TASKS[name].per_call(devices), first=first, memory=memory, setting=setting).take(ways[chosen])


def checked(name: str) -> None:
    """For a test: how many parameters a model has, and its loss before and after some steps."""
    training = Training(name, 1)
    losses = [float(training.step()) for _ in range(4 * BATCHES)]
    print(num_parameters(MODELS[name](Chance()).parameters), losses[0], losses[-BATCHES])


if __name__ == "__main__":
    kind, model_name, num_devices = sys.argv[1:4]
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", int(num_devices))
    if kind == "check":
        checked(model_name)
    else:
        contend(model_name, int(num_devices))
