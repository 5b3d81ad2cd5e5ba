"""A PostgreSQL server for a test, of Debian's package: it can be stopped and started again."""

import os
import pwd
import shutil
import socket
import subprocess
from pathlib import Path


def find() -> Path | None:
    """The folder of the server's programs; None where it is not installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    on_path = shutil.which("initdb")
    return found[-1].parent if found else Path(on_path).parent if on_path else None


class Server:
    """It refuses to run as root, so then it runs as the user whom its package makes, or as nobody."""

    def __init__(self, programs: Path, folder: Path) -> None:
        self._programs, self._data = programs, folder / "data"
        folder.mkdir()
        self._user = None
        if os.geteuid() == 0:
            names = {user.pw_name for user in pwd.getpwall()}
            self._user = pwd.getpwnam("postgres" if "postgres" in names else "nobody")
            os.chown(folder, self._user.pw_uid, self._user.pw_gid)
            for above in folder.parents:  # it must be able to reach its folder
                if above.stat().st_uid == 0 and not above.stat().st_mode & 0o001:
                    above.chmod(above.stat().st_mode | 0o011)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        self._run("initdb", "-D", str(self._data), "-U", "sweep", "-A", "trust", "--no-sync")
        self._folder = folder
        self.start()
        self._run("createdb", "-h", "127.0.0.1", "-p", str(self._port), "-U", "sweep", "study")

    @property
    def url(self) -> str:
        return f"postgresql://sweep@127.0.0.1:{self._port}/study"

    def start(self) -> None:
        options = f"-p {self._port} -c listen_addresses=127.0.0.1 -c unix_socket_directories= -c fsync=off"
        self._run(
            "pg_ctl", "-D", str(self._data), "-w", "-l", str(self._folder / "log"), "-o", options, "start"
        )

    def stop(self) -> None:
        self._run("pg_ctl", "-D", str(self._data), "-w", "-m", "immediate", "stop")

    def _run(self, program: str, *arguments: str) -> None:
        who = (
            {}
            if self._user is None
            else {"user": self._user.pw_uid, "group": self._user.pw_gid, "extra_groups": []}
        )
        done = subprocess.run(
            [str(self._programs / program), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            cwd="/",
            **who,
        )
        assert done.returncode == 0, done.stderr
