"""Start a program on several machines, which are processes here, and take what each of them says."""

import json
from dataclasses import dataclass

from fresh import ROOT, forked


@dataclass(frozen=True)
class Ended:
    """How a machine ended."""

    code: int
    when: float  # in seconds of the clock
    out: str
    err: str

    def said(self, what):
        """The lines of its output that begin so, without that."""
        return [line[len(what) + 1 :] for line in self.out.splitlines() if line.startswith(f"{what} ")]


def together(commands, *, seconds=600, patience=60, **environment):
    """How the machines of a cluster ended, each of which ran a command.

    Args:
        commands: for each machine a file and its arguments.
        seconds, patience: who is left so long after the start, or after the first end, is killed.
        environment: for all of them.
    """
    spec = {"commands": commands, "environment": environment, "seconds": seconds, "patience": patience}
    group = str(ROOT / "tests" / "machine_group.py")
    done = forked([group, json.dumps(spec)], timeout=seconds + 100)
    assert done.returncode == 0, done.stderr
    return [Ended(**one) for one in json.loads(done.stdout.splitlines()[-1])]


def on_machines(cases, devices, **environment):
    """What each machine says of each case, by its name; machines have so many devices."""
    program = str(ROOT / "tests" / "machine_cases.py")
    ended = together([[program, ",".join(cases), str(count)] for count in devices], **environment)
    for one in ended:
        assert one.code == 0, one.err[-4000:]
    return [dict(map(json.loads, one.said("CASE"))) for one in ended]


def run_on_machines(what, folder, devices, **options):
    """How the machines ended that ran `machine_runs.py`."""
    program = str(ROOT / "tests" / "machine_runs.py")
    commands = [[program, what, str(folder), str(count)] for count in devices]
    return together(commands, **{"patience": 20, **options})
