"""A program of a group that uses TensorFlow: `tensorflow_rank.py WHAT MODEL [MODE]`.

    sums          sums of so many bytes, so many times: Colonnade's collective, in a loop in the graph
    colonnade     steps of a model by cn.Trainer, with one device in each program; MODE is what `sync=` is
    multiworker   the same by MultiWorkerMirroredStrategy, in the loop that its users write

Orders of `sums` are `BYTES COUNT`; of the others any word, for as many steps as a call has.
"""

import os
import sys
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
    from colonnade.run.machines.collective import Collective

    cn.setup()
    collective = Collective(cn.machines().size)
    loops: dict[int, Any] = {}

    def loop_of(num_bytes: int) -> Any:
        @tf.function
        def loop(vector: Any, count: Any) -> Any:
            for _ in tf.range(count):
                vector = collective.sum(vector) / cn.machines().size  # stays finite
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


def multiworker(name: str) -> None:
    model = MODELS[name]
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
    {"sums": sums, "colonnade": colonnade, "multiworker": multiworker}[sys.argv[1]](*sys.argv[2:])
    sys.stdout.flush()
    os._exit(0)
