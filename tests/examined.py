"""The self-test on three virtual devices: one check of it, and what came of it."""

import getpass
import platform
import re

from colonnade.run.selftest import selftest

DEVICES = tuple(f"/device:CPU:{i}" for i in range(3))
CHECKS = {check.name: check for check in selftest.CHECKS}
GIB = 2**30


def outcome(name):
    (result,) = selftest.examine(DEVICES, [CHECKS[name]])
    return result


def fails(name):
    result = outcome(name)
    assert result.state == "failed", result
    return f"{result.found} {result.words}".strip()


def private(text):
    """What must not be in a bundle: names of the user and the host, paths, UUIDs, processes."""
    names = {getpass.getuser(), platform.node()} - {"localhost"}
    found = [name for name in names if re.search(rf"\b{re.escape(name)}\b", text)]
    found += re.findall(r"(?<![\w/:.])/(?!device:)\w[^\s\"]*", text)
    found += re.findall(r"\b[0-9a-f]{8}-[0-9a-f]{4}-\S*", text)
    return found + re.findall(r"\bpid|process", text)
