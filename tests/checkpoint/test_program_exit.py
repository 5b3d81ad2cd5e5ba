"""How a program ends that was interrupted and saved."""

import pytest

from colonnade.run.checkpoint.program_exit import leave


@pytest.mark.parametrize(("step", "says"), [(None, "no step"), (7, "step 7")])
def test_leaving_says_what_is_saved_and_asks_to_be_started_again(capsys, tmp_path, step, says):
    with pytest.raises(SystemExit) as left:
        leave(step, tmp_path)
    assert left.value.code == 75
    assert f"interrupted; {says} is saved in {tmp_path}" in capsys.readouterr().err
