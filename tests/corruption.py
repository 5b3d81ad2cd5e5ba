"""Damage to saved steps, and a count of what was found; needs no TensorFlow, so ten thousand are cheap.

corruption.py DIRECTORY COUNT SEED
"""

import random
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from colonnade.run.checkpoint.directory import Archive
from colonnade.run.checkpoint.manifest import Manifest

KINDS = ("flip", "truncate", "zero", "grow", "remove", "swap", "link")


def manifest(step: int) -> Manifest:
    return Manifest(
        step=step,
        examples=10 * step,
        skipped=0,
        fit=1,
        begin=0,
        stopped=False,
        loss=0.5,
        metrics={},
        schedule={"optimizer/sgd/iteration": step},
        generators={},
        data={
            "kind": "exact",
            "epochs": None,
            "batches": step,
            "spec": "x",
            "passes": 1,
            "before": [],
            "cardinality": -1,
        },
        devices=2,
        mode={"sync": "Synchronous", "variables": "shared"},
        versions={},
        written="2026-01-01T00:00:00+00:00",
    )


def save(archive: Archive, step: int) -> None:
    chance = random.Random(step)

    def write(folder: Path) -> None:
        sizes = {"values.index": 400, "values.data-00000-of-00001": 9000}
        sizes |= {"data.index": 90, "data.data-00000-of-00001": 300}
        for name, size in sizes.items():
            (folder / name).write_bytes(chance.randbytes(size))

    archive.directory.mkdir(parents=True, exist_ok=True)
    archive.commit(manifest(step), write)


def damage(folder: Path, kind: str, chance: random.Random) -> None:
    """Damage one file of a saved step."""
    path = chance.choice(sorted(folder.iterdir()))
    whole = path.read_bytes()
    place = chance.randrange(len(whole))
    if kind == "flip":
        changed = bytearray(whole)
        changed[place] ^= 1 << chance.randrange(8)
        path.write_bytes(changed)
    elif kind == "truncate":
        path.write_bytes(whole[:place])
    elif kind == "zero":
        end = place + chance.randint(1, 512)
        path.write_bytes((whole[:place] + bytes(len(whole[place:end])) + whole[end:])[: len(whole)])
    elif kind == "grow":
        path.write_bytes(whole + chance.randbytes(chance.randint(1, 8)))
    elif kind == "remove":
        path.unlink()
    elif kind == "swap":
        other = chance.choice([one for one in sorted(folder.iterdir()) if one != path])
        path.write_bytes(other.read_bytes())
    else:
        path.rename(folder.parent / "elsewhere")
        path.symlink_to(folder.parent / "elsewhere")


def corrupt(directory: Path, count: int, seed: int, kinds: Sequence[str] = KINDS) -> dict[str, int]:
    """Damage the newest of two steps again and again; the older one must be used every time.

    Four times out of five with one of the first two kinds.
    """
    archive, chance = Archive(directory / "run"), random.Random(seed)
    save(archive, 100)
    save(archive, 200)
    newest, copy = archive.directory / "step-000000000200", directory / "copy"
    shutil.copytree(newest, copy)
    total = dict.fromkeys(kinds, 0)
    while sum(total.values()) < count:
        kind = chance.choice(kinds[:2]) if chance.random() < 0.8 else chance.choice(kinds)
        damage(newest, kind, chance)
        same = all(
            not (newest / path.name).is_symlink()
            and (newest / path.name).exists()
            and (newest / path.name).read_bytes() == path.read_bytes()
            for path in copy.iterdir()
        )
        if not same:  # zeros may have been zeros before
            saved, damaged = archive.newest()
            assert saved is not None, kind
            assert saved.step == 100, kind
            assert [one.step for one in damaged] == [200], kind
            total[kind] += 1
        shutil.rmtree(newest)
        shutil.copytree(copy, newest)
    saved, damaged = archive.newest()
    assert saved is not None
    assert (saved.step, damaged) == (200, [])
    return total


if __name__ == "__main__":
    folder, count, seed = sys.argv[1:]
    print(corrupt(Path(folder), int(count), int(seed)))
