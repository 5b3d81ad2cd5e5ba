"""The user's own ssh, with his keys and his configuration: how to start our end on another machine.

The only word that a shell reads there is the path of this Python. What is to be run, where and with which
environment, goes through the connection as JSON (see far_end.py), so no argument can mean anything to a
shell, and none is shown in the list of processes.
"""

import shlex
import subprocess
import sys

from colonnade.errors import InvalidArgument, Problem

FAR_END = "colonnade.fleet.far_end"
OPTIONS = {
    "BatchMode": "yes",  # nobody is there to answer for several machines at once
    "ConnectTimeout": "8",
    # A machine that is cut off is told of in 9 seconds, and not when TCP gives up.
    "ServerAliveInterval": "3",
    "ServerAliveCountMax": "3",
    # What a configuration may ask for, and that a second connection cannot have, or should not.
    "ClearAllForwardings": "yes",
    "RemoteCommand": "none",
    "RequestTTY": "no",
}


def here() -> list[str]:
    """The command that starts our end on this machine."""
    return [sys.executable, "-P", "-m", FAR_END]


def there(target: str) -> list[str]:
    """The command that starts our end on another machine, with the Python of the same path."""
    options = [word for name, value in OPTIONS.items() for word in ("-o", f"{name}={value}")]
    return ["ssh", *options, "--", target, f"exec {shlex.join(here())}"]


def address(target: str) -> str:
    """The host that ssh would connect to: a name may be one of the user's configuration alone."""
    try:
        done = subprocess.run(
            ["ssh", "-G", "--", target], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=5
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _unknown(target, str(error)) from None
    for line in done.stdout.splitlines():
        word, _, value = line.partition(" ")
        if word == "hostname" and value:
            return value
    raise _unknown(target, done.stderr.strip() or "it names no host")


def _unknown(target: str, why: str) -> InvalidArgument:
    rule = f"ssh does not say where that is ({why})"
    return InvalidArgument("run", [Problem("--machines", target, rule, f"Try: ssh -G {target}")])
