"""A disk that is really full: a small file system in memory, which only root can mount."""

import os
import subprocess
import threading
import time

import pytest


@pytest.fixture
def small_disk(tmp_path):
    place = tmp_path / "studies"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("no file system can be mounted here: that needs root")
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.mark.long
def test_a_sweep_waits_while_its_disk_is_full(sweep, states, small_disk):
    """Somebody else fills it up, and makes room again after some seconds."""

    def fill():
        while ("complete", 2) not in sweep.seen.lines:
            time.sleep(0.01)
        with (small_disk / "filler").open("wb", buffering=0) as file:
            for size in (4096, 1):
                try:
                    while True:
                        file.write(bytes(size))
                except OSError:
                    continue
        time.sleep(4)
        (small_disk / "filler").unlink()

    thread = threading.Thread(target=fill)
    thread.start()
    swept = sweep("slow", trials=12, virtual=2, reuse=True)
    thread.join()
    assert states(swept.study) == ["COMPLETE"] * 12
    assert any("No space left" in str(text) for what, text in sweep.seen.lines if what == "noted")
