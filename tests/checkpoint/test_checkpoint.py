import pytest
from saves import batches, linear, saved, steps_in

import colonnade as cn


def test_resume_false_refuses_what_is_there(tmp_path):
    fresh_start = saved(tmp_path, resume=False)
    _, trainer = linear()
    for _ in range(2):  # a second fit of the same program goes on
        trainer.fit(batches(), steps=3, checkpoint=fresh_start, progress=False)
    assert trainer.step == 6
    _, other = linear()
    with pytest.raises(cn.InvalidArgument, match="holds the checkpoints of a run"):
        other.fit(batches(), steps=3, checkpoint=fresh_start, progress=False)
    assert steps_in(tmp_path) == [3, 4, 6]


def test_settings_are_checked_all_at_once(tmp_path):
    with pytest.raises(cn.InvalidArgument) as error:
        cn.Checkpoint("", every=0, keep=0, resume="yes", data="again")
    assert {problem.argument for problem in error.value.problems} == {
        "directory",
        "every",
        "keep",
        "resume",
        "data",
    }
    _, trainer = linear()
    with pytest.raises(cn.InvalidArgument, match=r"must be a cn\.Checkpoint"):
        trainer.fit(batches(), checkpoint=str(tmp_path))
    (tmp_path / "file").touch()
    with pytest.raises(cn.InvalidArgument, match="cannot be written"):
        trainer.fit(batches(), checkpoint=saved(tmp_path / "file" / "run"), progress=False)
