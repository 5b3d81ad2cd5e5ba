"""What a saved step says of itself: damage is noticed, and lies are not believed."""

import json
import math
import os
from dataclasses import replace

import pytest
from corruption import KINDS, corrupt, manifest, save

import colonnade as cn
from colonnade.run.checkpoint.manifest import MANIFEST, SEAL, Manifest, examine, seal


def test_two_hundred_flips_and_truncations_are_found(tmp_path):
    total = corrupt(tmp_path, 200, seed=5, kinds=("flip", "truncate"))
    assert sum(total.values()) == 200
    assert min(total.values()) > 50


def test_other_damage_is_found_too(tmp_path):
    assert min(corrupt(tmp_path, 100, seed=6, kinds=KINDS[2:]).values()) > 0


def test_a_manifest_survives_json():
    one = manifest(7)
    assert Manifest.from_json(one.to_json()) == one


def test_what_is_not_a_number_is_null_in_json():
    one = replace(manifest(7), loss=math.nan, metrics={"accuracy": math.inf}, schedule={"rate": math.nan})
    plain = json.loads(one.to_json(), parse_constant=pytest.fail)
    assert (plain["loss"], plain["metrics"], plain["schedule"]) == (None, {"accuracy": None}, {"rate": None})
    back = Manifest.from_json(one.to_json())
    assert math.isnan(back.loss)
    assert math.isnan(back.metrics["accuracy"])


def sealed(folder, **changes):
    """Another manifest with the right checksum, as somebody with bad intentions would write it."""
    plain = json.loads((folder / MANIFEST).read_text()) | changes
    text = json.dumps(plain).encode()
    (folder / MANIFEST).write_bytes(text)
    (folder / SEAL).write_bytes(seal(text))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"files": {"../../outside": {"size": 4, "sha256": "0"}}}, "not a plain file name"),
        ({"files": {"/etc/hostname": {"size": 4, "sha256": "0"}}}, "not a plain file name"),
        ({"files": {"..": {"size": 4, "sha256": "0"}}}, "not a plain file name"),
        ({"files": {"values.index": {"size": 4}}}, "not a manifest"),
        ({"files": 3}, "not a manifest"),
        ({"format": "99"}, "has format '99'"),
        ({"files": {}}, "is there, and manifest.json does not name it"),
        ({"step": -1}, "not a whole number"),
        ({"step": 8}, "that of step 8"),
        ({"fit": 0}, "no training has: fit=0"),
        ({"begin": 8}, "no training has: begin=8"),
        ({"devices": 0}, "no training has: devices=0"),
        ({"devices": "2"}, "no training has: devices='2'"),
        ({"stopped": 1}, "no training has: stopped=1"),
        ({"written": "yesterday"}, "no training has: written='yesterday'"),
        ({"written": 3}, "no training has: written=3"),
        ({"staleness": {"old": 3}}, "no training has: staleness={'old': 3}"),
        ({"staleness": []}, "no training has: staleness=[]"),
        ({"mode": "shared"}, "no training has: mode='shared'"),
        ({"metrics": {"loss": "low"}}, "not a manifest"),
        ({"loss": [1]}, "not a manifest"),
        ({"data": []}, "no training has: data=[]"),
        ({"data": {}}, "no training has: data={}"),
        ({"fit": 3}, "no training has: data={'kind'"),  # nothing is said of the two before it
    ],
)
def test_a_manifest_that_lies_is_refused(archive, tmp_path, changes, says):
    (tmp_path / "outside").write_text("safe")
    save(archive, 7)
    sealed(archive.directory / "step-000000000007", **changes)
    saved, (damaged,) = archive.newest()
    assert saved is None
    assert says in damaged.flaw


@pytest.mark.parametrize(
    "changes",
    [
        {"passes": 0.5},
        {"passes": 10**15},
        {"epochs": "all"},
        {"batches": 3},
        {"before": [1]},
        {"before": None},
        {"cardinality": None},
        {"spec": 3},
        {"kind": None},
    ],
)
def test_a_place_in_the_data_that_cannot_be_is_refused(archive, changes):
    save(archive, 7)
    folder = archive.directory / "step-000000000007"
    sealed(folder, data=json.loads((folder / MANIFEST).read_text())["data"] | changes)
    saved, (damaged,) = archive.newest()
    assert saved is None
    assert "no training has: data={" in damaged.flaw


def test_a_step_of_another_format_is_not_called_damaged(archive):
    save(archive, 7)
    save(archive, 8)
    sealed(archive.directory / "step-000000000008", format=99)
    with pytest.raises(cn.UnreadCheckpoint, match=r"has format 99, and this version of Colonnade reads \d"):
        archive.newest()
    assert sorted(path.name for path in archive.directory.iterdir()) == [
        "step-000000000007",
        "step-000000000008",
    ]


def test_a_link_that_the_manifest_does_not_name_is_not_followed(archive, tmp_path):
    save(archive, 7)
    folder, name = archive.directory / "step-000000000007", "values.data-00000-of-00001"
    (folder / name).rename(tmp_path / "outside")
    (folder / name).symlink_to(tmp_path / "outside")
    listed = json.loads((folder / MANIFEST).read_text())["files"]
    for files in ({}, {one: listed[one] for one in listed if one != name}):
        sealed(folder, files=files)
        assert "does not name it" in archive.newest()[1][0].flaw
    (folder / name).unlink()
    assert "names no values.data-" in archive.newest()[1][0].flaw


def test_the_manifest_tells_its_own_checksum_to_sha256sum(archive):
    save(archive, 1)
    folder = archive.directory / "step-000000000001"
    assert os.system(f"cd {folder} && sha256sum --quiet --check {SEAL}") == 0
    assert replace(examine(folder, thorough=True), files={}) == manifest(1)
