import json

from fresh import COMMAND, run
from saves import batches, linear, saved


def test_the_command_lists_what_is_saved(tmp_path):
    _, trainer = linear()
    options = {"progress": False, "prove": False}  # at 0, where it begins, its gradients are 0
    trainer.fit(batches(), steps=6, epochs=2, checkpoint=saved(tmp_path, keep=1), **options)
    done = run([COMMAND, "checkpoints", str(tmp_path), "--json"])
    assert done.returncode == 0, done.stderr
    (facts,) = json.loads(done.stdout)
    assert (facts["step"], facts["examples"], facts["devices"], facts["whole"]) == (6, 60, 2, True)
    assert facts["verified"] is False
    (tmp_path / "step-000000000006" / "values.index").write_bytes(b"")
    done = run([COMMAND, "checkpoints", str(tmp_path)])
    assert done.returncode == 1
    assert "damaged: values.index has 0 bytes instead of" in done.stdout
    assert "--verify reads every byte" in done.stdout
    missing = run([COMMAND, "checkpoints", str(tmp_path / "nowhere")])
    assert missing.returncode == 2
    assert "is not a directory" in missing.stderr
