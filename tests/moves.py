"""How often a reader who follows one batch through the code goes from one module to another.

`python tests/moves.py` follows the first step of a synchronous training and of a pipeline: of every function
of Colonnade the first call. A move is a call in another module than the call before it; it turns back if the
module was seen before. What is written inside a function (a comprehension, a lambda, a closure) is read with
it, and what nobody wrote (the `__init__` of a dataclass, what AutoGraph makes) is not read.

`python tests/moves.py --list` says the functions in their order too, with a star at each move.
"""

import itertools
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import tensorflow as tf

import colonnade as cn


def synchronous():
    w = tf.Variable([[0.0]])
    return cn.Trainer(lambda x, y: tf.squeeze((x @ w - y) ** 2, 1), keras.optimizers.SGD(0.1), devices=2)


def pipeline():
    stages = cn.Pipeline([keras.layers.Dense(3), keras.layers.Dense(1)], 2)
    loss = lambda x, y: tf.squeeze((stages(x) - y) ** 2, 1)  # noqa: E731
    return cn.Trainer(loss, keras.optimizers.SGD(0.1), devices=stages)


def followed(trainer):
    """The functions that a first step calls, each as (module, name), in the order of their first calls."""
    functions = {}

    def note(frame, event, _):
        module, code = frame.f_globals.get("__name__", ""), frame.f_code
        written = code.co_filename == frame.f_globals.get("__file__")
        if event == "call" and written and module.startswith("colonnade."):
            functions[module, code.co_qualname.partition(".<locals>")[0]] = None

    x = tf.ones([8, 1])
    sys.setprofile(note)
    trainer.train_on_batch(x, x)
    sys.setprofile(None)
    return list(functions)


def counted(modules):
    """Moves, those that turn back, and modules."""
    moves = sum(one != other for one, other in itertools.pairwise(modules))
    return moves, moves - len(set(modules)) + 1, len(set(modules))


if __name__ == "__main__":
    cn.setup(virtual=4)
    for way in (synchronous, pipeline):
        functions = followed(way())
        modules = [module for module, _ in functions]
        moves, back, number = counted(modules)
        print(f"{way.__name__}: {moves} moves between {number} modules, {back} of them turning back")
        if "--list" in sys.argv:
            for (module, name), before in zip(functions, [None, *modules], strict=False):
                print(f"  {'*' if module != before else ' '} {module.removeprefix('colonnade.')}  {name}")
