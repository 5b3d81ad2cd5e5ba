"""A directory of saved steps, which is not there yet."""

import pytest

from colonnade.run.checkpoint.directory import Archive


@pytest.fixture
def archive(tmp_path):
    return Archive(tmp_path / "run")
