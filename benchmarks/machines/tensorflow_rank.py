"""A program of a group that uses TensorFlow: `tensorflow_rank.py WHAT MODEL [MODE]`.

    sums             sums of so many bytes, so many times, in a loop in the graph: by Colonnade
    tensorflow_sums  the same by the collective of MultiWorkerMirroredStrategy
    colonnade        steps of a model by cn.Trainer, with one device in each program; MODE is what `sync=` is
    multiworker      the same by MultiWorkerMirroredStrategy, in the loop that its users write; MODE is how
                     many threads an op has, 0 for TensorFlow to choose

Orders of `sums` are `BYTES COUNT`; of the others any word, for as many steps as a call has.
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import colonnade as cn  # isort: skip
import keras
import psutil
import tensorflow as tf

sys.path.insert(0, str(Path(__file__).parent.parent / "throughput"))
from contender import adam, batches, built, replica_step
from models import MODELS
from orders import obey, orders, tell

JOINED = 20  # steps between joins of DiLoCo
MODES = {
    "synchronous": lambda: cn.Synchronous(),
    "diloco": lambda: cn.DiLoCo(JOINED, across="machines", compress="int8"),
}


def sums() -> None:
    from colonnade.hardware.clusters import joining
    from colonnade.run.machines.collective import Collective

    cn.setup()
    joined = joining.joined()
    assert joined is not None
    _obey_sums(Collective(joined.ring).sum)


def tensorflow_sums() -> None:
    strategy = tf.distribute.MultiWorkerMirroredStrategy()

    def added(vector: Any) -> Any:
        context = tf.distribute.get_replica_context()
        with tf.device("/device:CPU:0"):  # it asks where the vector is
            vector = tf.identity(vector)
        return context.all_reduce(tf.distribute.ReduceOp.SUM, vector)

    _obey_sums(lambda vector: strategy.run(added, args=(vector,)))


def _obey_sums(add: Callable[[Any], Any]) -> None:
    loops: dict[int, Any] = {}
    own = len(json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"])

    def loop_of(num_bytes: int) -> Any:
        @tf.function
        def loop(vector: Any, count: Any) -> Any:
            for _ in tf.range(count):
                vector = add(vector) / own  # stays finite
            return tf.reduce_sum(vector)

        return loop.get_concrete_function(tf.TensorSpec([num_bytes // 4]), tf.TensorSpec([], tf.int32))

    def many(num_bytes: str, count: str) -> dict[str, Any]:
        size = int(num_bytes)
        if size not in loops:
            loops[size] = loop_of(size)
        total = float(loops[size](tf.ones([size // 4]), tf.constant(int(count))))
        return {"total": total}

    obey(many)


def colonnade(name: str, mode: str) -> None:
    """A fit that waits for an order after every so many steps."""
    cn.setup(virtual=1)
    model, process = MODELS[name], psutil.Process()
    steps = 2 * JOINED if mode == "diloco" else model.steps
    trainer = cn.Trainer(model.build(), adam(), sync=MODES[mode]())
    waiting = orders()

    def wait(_: Any) -> bool:
        tell(steps=steps, memory=process.memory_info().rss)
        return next(waiting, None) is None

    trainer.fit(batches(model), steps=10**9, log_every=steps, progress=False, callbacks=[wait])


def multiworker(name: str, threads: str) -> None:
    model = MODELS[name]
    if int(threads):
        tf.config.threading.set_intra_op_parallelism_threads(int(threads))
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        loss, optimizer, variables = built(model)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    iterator = iter(strategy.experimental_distribute_dataset(batches(model).with_options(options)))
    step = replica_step(loss, optimizer, variables)

    @tf.function
    def loop(iterator: Any, count: Any) -> Any:
        last = tf.constant(0.0)
        for _ in tf.range(count):
            losses = strategy.run(step, args=next(iterator))
            last = strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)
        return last

    count = tf.constant(model.steps)
    float(loop(iterator, count))
    tell(steps=model.steps)
    for _ in orders():
        tell(loss=float(loop(iterator, count)))


if __name__ == "__main__":
    keras.utils.set_random_seed(0)
    programs = {f.__name__: f for f in (sums, tensorflow_sums, colonnade, multiworker)}
    programs[sys.argv[1]](*sys.argv[2:])
    sys.stdout.flush()
    os._exit(0)
