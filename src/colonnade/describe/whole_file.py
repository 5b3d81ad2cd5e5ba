"""Writes files of which a reader sees the old one or the new one, whole, whatever becomes of the writer."""

import os
from pathlib import Path


def write_whole(path: Path, text: str, mode: int = 0o666) -> None:
    """Write a text in the place of a file; if that fails, the old file is there as it was, and no other.

    What has no bytes in UTF-8 becomes a question mark: half a pair of surrogates, as in the name of a
    folder that is in another encoding. `mode` says who may read and write a new file.
    """
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:
            file.write(text.encode("utf-8", errors="replace"))
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except BaseException:  # also Ctrl-C
        fresh.unlink(missing_ok=True)
        raise
