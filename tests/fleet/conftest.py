"""A line for leases of its own for every test."""

from contextlib import ExitStack

import pytest

from colonnade.fleet.lease import Pool, ask

PAIR = Pool(("a", "b"))


@pytest.fixture
def line(tmp_path):
    """Get in line in one directory, for one of two cards; everything is given back at the end."""
    with ExitStack() as stack:

        def join(pool=PAIR, count=1, **options):
            return stack.enter_context(ask(pool, count, directory=tmp_path / "leases", **options))

        join.directory = tmp_path / "leases"
        yield join
