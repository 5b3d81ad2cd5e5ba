"""One contender of torch in processes of its own: `torch_contender.py NAME MODEL DEVICES`.

`torch` is one process with all threads; `ddp` is DistributedDataParallel over gloo with a process per device,
which share the cores. Figures are those of contender.py; the memory of all processes is added up.
"""

import os
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from tasks import BATCH, BATCHES, EPSILON, LEARNING_RATE, TASKS
from torch.nn.parallel import DistributedDataParallel
from torch_models import MODELS, loss, num_parameters
from turns import Turns, fastest, imported, peak

CONVOLUTIONAL = ("cnn", "cifar")
PLAIN, CHANNELS_LAST = "as it is", "channels_last"


def stepper(name: str, way: str, rank: int, devices: int) -> Callable[[], float]:
    """A training; each call makes one step on the next of the batches, of which every rank has its slice."""
    torch.manual_seed(0)
    order = torch.channels_last if way == CHANNELS_LAST else torch.contiguous_format
    model: Any = MODELS[name]().to(memory_format=order)
    if devices > 1:
        model = DistributedDataParallel(model, gradient_as_bucket_view=True, static_graph=True)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(trained, LEARNING_RATE, eps=EPSILON, fused=True)
    x, y = TASKS[name].batches()
    own = slice(rank * BATCH // devices, (rank + 1) * BATCH // devices)
    batches = [(torch.from_numpy(a[own]), torch.from_numpy(b[own])) for a, b in zip(x, y, strict=True)]
    if name != "polynomial":
        batches = [(a, b.long()) for a, b in batches]
    if name in CONVOLUTIONAL and way == PLAIN:  # in memory as torch's default has them, channels first
        batches = [(a.permute(0, 3, 1, 2).contiguous().permute(0, 2, 3, 1), b) for a, b in batches]
    made = 0

    def step() -> float:
        nonlocal made
        a, b = batches[made % BATCHES]
        made += 1
        optimizer.zero_grad()
        value = loss(name, model(a), b)
        value.backward()
        optimizer.step()
        return value.detach()

    return step


def ways_of(name: str) -> list[str]:
    return [PLAIN, CHANNELS_LAST] if name in CONVOLUTIONAL else [PLAIN]


def caller(step: Callable[[], Any], steps: int) -> Callable[[], float]:
    def call() -> float:
        for _ in range(steps):
            last = step()
        return float(last)

    return call


def alone(name: str) -> None:
    """One process with as many threads as there are cores, which is torch's own choice."""
    steps = TASKS[name].steps
    imported()
    start = time.perf_counter()
    trainings = {PLAIN: stepper(name, PLAIN, 0, 1)}
    trainings[PLAIN]()
    first = time.perf_counter() - start
    caller(trainings[PLAIN], steps)()
    memory = peak()
    trainings |= {way: stepper(name, way, 0, 1) for way in ways_of(name)[1:]}
    calls = {way: caller(step, steps) for way, step in trainings.items()}
    chosen = fastest(calls)
    setting = f"{torch.get_num_threads()} threads, fused Adam, {chosen}"
    Turns(steps, first=first, memory=memory, setting=setting).take(calls[chosen])


def rank_main(rank: int, devices: int, name: str, port: int, orders: Any, answers: Any) -> None:
    """A rank that does what it is told: a number of steps in some way."""
    threads = max(1, len(os.sched_getaffinity(0)) // devices)
    torch.set_num_threads(threads)
    answers.put(rank)
    orders.get()  # when every rank is there
    where = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", init_method=where, rank=rank, world_size=devices)
    trainings: dict[str, Callable[[], Any]] = {}
    while order := orders.get():
        way, steps = order
        if way not in trainings:
            trainings[way] = stepper(name, way, rank, devices)
        value = caller(trainings[way], steps)()
        answers.put((value, peak()))
    dist.destroy_process_group()


def distributed(name: str, devices: int) -> None:
    """A process per device. This process only gives the orders; its memory does not count."""
    steps = TASKS[name].per_call(devices)
    context = mp.get_context("spawn")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    orders = [context.SimpleQueue() for _ in range(devices)]
    answers = context.SimpleQueue()
    ranks = [
        context.Process(target=rank_main, args=(i, devices, name, port, orders[i], answers), daemon=True)
        for i in range(devices)
    ]
    for rank in ranks:
        rank.start()
    for _ in ranks:
        answers.get()
    imported()

    def call(way: str, count: int) -> float:
        """Returns the peak of the memory so far, of all."""
        for queue in orders:
            queue.put((way, count))
        return sum(answers.get()[1] for _ in ranks)

    start = time.perf_counter()
    for queue in orders:
        queue.put("begin")
    call(PLAIN, 1)
    first = time.perf_counter() - start
    memory = call(PLAIN, steps)
    calls = {way: lambda way=way: call(way, steps) for way in ways_of(name)}
    chosen = fastest(calls)
    threads = max(1, len(os.sched_getaffinity(0)) // devices)
    setting = f"{threads} threads each, fused Adam, static graph, {chosen}"
    Turns(steps, first=first, memory=memory, setting=setting).take(calls[chosen])
    for queue in orders:
        queue.put(None)
    for rank in ranks:
        rank.join(10)


def checked(name: str) -> None:
    """For a test: how many parameters a model has, and its loss before and after some steps."""
    step = stepper(name, PLAIN, 0, 1)
    losses = [float(step()) for _ in range(4 * BATCHES)]
    print(num_parameters(MODELS[name]()), losses[0], losses[-BATCHES])


if __name__ == "__main__":
    kind, model_name, num_devices = sys.argv[1:4]
    if kind == "check":
        checked(model_name)
    elif kind == "ddp":
        distributed(model_name, int(num_devices))
    else:
        alone(model_name)
