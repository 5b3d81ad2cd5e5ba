"""The choice of how variables are dealt over the devices."""

import pytest

import colonnade as cn


def test_by_size_unless_asked_otherwise():
    assert cn.Partitioned() == cn.Partitioned(by="size")
    assert cn.Partitioned(by="turn").by == "turn"


@pytest.mark.parametrize("by", ["name", None, 3])
def test_another_word_is_refused(by):
    with pytest.raises(cn.InvalidArgument, match="must be size or turn"):
        cn.Partitioned(by=by)
