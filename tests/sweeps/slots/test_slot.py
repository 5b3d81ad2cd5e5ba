import asyncio
import os
import subprocess
import sys
import time

import psutil
import pytest

import colonnade as cn
from colonnade.fleet.lease import Pool, ask, claims
from colonnade.sweeps.slots.slot import Slot, SlotLease

NAME = ("colonnade", "sweep", "a", "0")


@pytest.fixture
def slot(tmp_path):
    """Start a slot of two virtual cards in a directory of leases of its own."""
    read, write = os.pipe()
    slots = []

    def start(**options):
        share = SlotLease(**{"virtual": 2, "leases": tmp_path / "leases", **options})
        slots.append(Slot(share, NAME, write))
        return slots[-1]

    start.leases = tmp_path / "leases"
    start.log = tmp_path / "log.txt"
    yield start
    os.close(read)
    os.close(write)


def python(slot, text, log, environment=None):
    slot.start([sys.executable, "-c", text], environment or {}, log, None)


def test_programs_run_in_turn_under_one_lease(slot):
    async def main():
        kept = slot()
        assert await kept.lease()
        python(kept, "import os; print(os.environ['COLONNADE_CARDS'], os.environ['A'])", slot.log, {"A": "b"})
        assert await kept.end() == 0
        python(kept, "import sys; sys.exit(3)", slot.log)
        assert await kept.end() == 3
        kept.start(["/no/such/program"], {}, slot.log, None)
        assert await kept.end() == 127
        held = [claim.slots for claim in claims(slot.leases)]
        await kept.close()
        assert kept.over
        return held

    assert asyncio.run(main()) == [("virtual:0",)]
    assert slot.log.read_text().splitlines()[0] == "virtual:0 b"
    assert "cannot be started: No such file or directory" in slot.log.read_text()
    assert claims(slot.leases) == ()


def test_a_killed_slot_is_over_when_its_program_is_gone(slot):
    async def main():
        kept = slot()
        await kept.lease()
        python(kept, "import os, time; os.fork(); print(os.getpid(), flush=True); time.sleep(60)", slot.log)
        while len(slot.log.read_text().split()) < 2:
            await asyncio.sleep(0.01)
        pids = [int(pid) for pid in slot.log.read_text().split()]
        assert all(map(psutil.pid_exists, pids))
        kept.kill()
        assert await kept.end() is None
        return pids

    slot.log.touch()
    assert not any(map(psutil.pid_exists, asyncio.run(main())))
    deadline = time.monotonic() + 2  # the supervisor's last act closes one descriptor after another
    while claims(slot.leases):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_sigterm_reaches_the_program(slot):
    async def main():
        kept = slot()
        await kept.lease()
        polite = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(75))"
        text = f"{polite}; print(1, flush=True); time.sleep(60)"
        python(kept, text, slot.log)
        while not slot.log.read_text():
            await asyncio.sleep(0.01)
        kept.terminate()
        code = await kept.end()
        await kept.close()
        return code

    slot.log.touch()
    assert asyncio.run(main()) == 75


def test_it_waits_in_line(slot):
    async def main():
        with ask(Pool(("virtual:0", "virtual:1")), 2, directory=slot.leases) as other:
            other.wait()
            kept = slot()
            leasing = asyncio.ensure_future(kept.lease())
            while not kept.place:
                await asyncio.sleep(0.01)
            assert not leasing.done()
        assert await leasing
        await kept.close()
        return kept.cards

    assert asyncio.run(main()) == ("virtual:0",)


def test_leases_that_cannot_be_used(slot, tmp_path):
    async def main():
        kept = slot(leases=tmp_path / "no" / "such" / "folder")
        try:
            await kept.lease()
        finally:
            await kept.close()

    with pytest.raises(cn.ColonnadeError, match="cannot be made"):
        asyncio.run(main())


SWEEP = """
import asyncio, os, sys
from pathlib import Path
from colonnade.sweeps.slots.slot import SlotLease, Slot
async def main(folder):
    slot = Slot(SlotLease(virtual=1, leases=folder / "leases"), ("a",), os.dup(2))
    await slot.lease()
    text = "import os, time; print(os.getpid(), os.getppid(), flush=True); time.sleep(60)"
    slot.start([sys.executable, "-c", text], {}, folder / "log.txt", None)
    await slot.end()
asyncio.run(main(Path(sys.argv[1])))
"""


def test_neither_keeper_nor_program_outlives_a_killed_sweep(tmp_path):
    log = tmp_path / "log.txt"
    log.touch()
    with subprocess.Popen([sys.executable, "-c", SWEEP, str(tmp_path)]) as sweep:
        while len(log.read_text().split()) < 2:
            time.sleep(0.01)
        below = psutil.Process(sweep.pid).children(recursive=True)
        sweep.kill()
    assert len(below) == 3  # the keeper, its supervisor, the program
    _, alive = psutil.wait_procs(below, timeout=8)
    assert alive == []
