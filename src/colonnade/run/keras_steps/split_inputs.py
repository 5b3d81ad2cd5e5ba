"""`split=`: which inputs of a Keras model are cut over the devices; every device gets the others whole."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from colonnade.errors import Problem, check
from colonnade.run.batch.split import Arguments, broadcast


@dataclass(frozen=True)
class SplitInputs:
    """The inputs that are cut, by their keys or places in `x`; None are all of them."""

    named: tuple[str | int, ...] | None = None

    def marked(self, x: Any) -> Any:
        """Inputs of which those that are not cut are marked (see `broadcast`)."""
        if self.named is None:
            return x
        check("fit()", self._problems(x))
        if isinstance(x, dict):
            return {key: one if key in self.named else broadcast(one) for key, one in x.items()}
        return tuple(one if i in self.named else broadcast(one) for i, one in enumerate(x))

    def marked_in(self, data: Any) -> Any:
        """A batch of Keras's, with its inputs marked."""
        if self.named is None:
            return data
        x, *rest = data if isinstance(data, tuple | list) else (data,)
        return (self.marked(x), *rest)

    def _problems(self, x: Any) -> Iterator[Problem]:
        if not isinstance(x, dict | list | tuple):
            rule = "names inputs of a model that has one, which is cut"
            yield Problem("split", self.named, rule, "Leave it out, or pass a dict or a list of inputs")
            return
        there = list(x) if isinstance(x, dict) else list(range(len(x)))
        for name in self.named or ():
            if name not in there:
                rule = f"is none of the inputs, which are {', '.join(map(str, there))}"
                yield Problem("split", name, rule, "Name those that have a row for each example")


# What is said if nothing is.
EVERY_INPUT = SplitInputs()


def split_problems(split: Any) -> Iterator[Problem]:
    """What is wrong with a value of `split=`."""
    if split is None:
        return
    fits = isinstance(split, list | tuple) and all(isinstance(name, str | int) for name in split)
    if not fits or not split:
        rule = "must be the keys, or the places, of the inputs that are cut"
        yield Problem("split", split, rule, 'Try split=["items"]')


def uncut(batch: Arguments) -> Iterator[Problem]:
    """Inputs with different numbers of rows, as those of a batch that is one graph."""
    sizes = {leaf.path: leaf.size() for leaf in batch.split}
    if len(set(sizes.values()) - {None}) > 1:
        rule = "differ in their numbers of rows, so a batch is not examples one after the other, and "
        rule += "cannot be cut into slices"
        fix = (
            "Let every device take a batch of its own: per_device=True. Or name the inputs that are cut, and "
        )
        fix += "every device gets the others whole: split=[...]"
        yield Problem("inputs", sizes, rule, fix)
