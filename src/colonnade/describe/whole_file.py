"""Writes files of which a reader sees the old one or the new one, whole, whatever becomes of the writer."""

import os
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Write a text in the place of a file; if that fails, the old file is there as it was, and no other.

    What has no bytes in UTF-8 becomes a question mark: half a pair of surrogates, as in the name of a
    folder that is in another encoding.
    """
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with fresh.open("wb") as file:
            file.write(text.encode("utf-8", errors="replace"))
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except BaseException:  # also Ctrl-C
        fresh.unlink(missing_ok=True)
        raise
