"""Stands in for ssh: every machine is this one, reached or not as files in a folder say.

Installed as `ssh` in front of PATH. As sshd does, it gives what it starts an environment of its own, relays
its streams, and lets it see the end of them when the connection is gone.

    FOLDER/cut-NAME      the connection to NAME is cut, and no new one comes about, as long as the file exists
    FOLDER/silent-NAME   NAME never answers
    FOLDER/asked         one line per use: what ssh was asked for
"""

import os
import shlex
import subprocess
import sys
import threading
import time
from pathlib import Path


def install(folder: Path) -> dict[str, str]:
    """Make a folder with this `ssh` in it; the environment in which it is found."""
    folder.mkdir(exist_ok=True)
    script = folder / "ssh"
    words = shlex.join([sys.executable, "-S", "-E", str(Path(__file__).resolve()), str(folder)])
    script.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
    script.chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}"}


def main(folder: Path, arguments: list[str]) -> int:
    name = arguments[arguments.index("--") + 1].rpartition("@")[2]
    with (folder / "asked").open("a") as asked:
        print(arguments, file=asked)
    if "-G" in arguments:
        print(f"user me\nhostname {'127.0.0.1' if not name.startswith('far') else name}\nport 22")
        return 0
    if (folder / f"silent-{name}").exists():
        time.sleep(60)
    if (folder / f"cut-{name}").exists():
        print(f"ssh: connect to host {name} port 22: No route to host", file=sys.stderr)
        return 255
    kept = ("HOME", "PYTHONPATH", "PYTHONSAFEPATH")
    started = subprocess.Popen(
        ["/bin/sh", "-c", arguments[arguments.index("--") + 2]],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd="/",
        env={"PATH": "/usr/bin:/bin", **{k: os.environ[k] for k in kept if k in os.environ}},
    )
    threading.Thread(target=relay, args=(0, started.stdin.fileno()), daemon=True).start()
    output = threading.Thread(target=relay, args=(started.stdout.fileno(), 1), daemon=True)
    output.start()
    while output.is_alive():
        if (folder / f"cut-{name}").exists():
            return 255  # all pipes close, which is all that the other end sees
        time.sleep(0.02)
    return started.wait()


def relay(source: int, target: int) -> None:
    while chunk := os.read(source, 2**16):
        os.write(target, chunk)
    os.close(target)


if __name__ == "__main__":
    code = main(Path(sys.argv[1]), sys.argv[2:])
    sys.stdout.flush()
    os._exit(code)
