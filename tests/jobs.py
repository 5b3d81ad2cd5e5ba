"""Programs that are started by `colonnade run`."""

import os
import subprocess
import sys

from fresh import COMMAND


class Job:
    """`colonnade run` on two virtual cards, with a program that says when it has started."""

    def __init__(self, folder, program, *options, **started):
        self.leases = folder / "leases"
        command = [COMMAND, "run", "--virtual", "2", *options, "--", sys.executable, "-c", program]
        environment = {**os.environ, "COLONNADE_LEASES": str(self.leases), "PYTHONUNBUFFERED": "1"}
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            command, stdout=pipe, stderr=pipe, text=True, env=environment, **started
        )

    def line(self):
        return self.process.stdout.readline().strip()

    def end(self):
        out, errors = self.process.communicate(timeout=20)
        return self.process.returncode, out.split(), errors
