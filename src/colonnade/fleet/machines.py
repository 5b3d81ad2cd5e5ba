"""`colonnade run --machines` and `--local`: one program on several machines, or several times on this one.

What the program finds in its environment, besides what `colonnade run` sets for its cards (see launch.py):

    TF_CONFIG             the addresses of all, and which one it is
    COLONNADE_MACHINES    the names of all
    COLONNADE_GENERATION  how often it was started anew: 0, 1, ...
    COLONNADE_CLUSTER     a number that no other launcher has

On another machine also PATH, PYTHONPATH and some more as they are here (see PASSED), so that the same words
mean the same programs. Nothing else of this environment leaves this machine.
"""

import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from colonnade.describe.clusters import fence
from colonnade.describe.clusters.address import is_loopback
from colonnade.describe.clusters.slurm_step import PORTS
from colonnade.errors import LeaseTimeout, Problem, check
from colonnade.fleet import launch, remote_shell
from colonnade.fleet.hosts import Host, hosts
from colonnade.fleet.rounds import rounds
from colonnade.fleet.worker import Place
from colonnade.hardware import gpu

PASSED = ("PATH", "PYTHONPATH", "VIRTUAL_ENV", "CONDA_PREFIX", "LD_LIBRARY_PATH", "TZ", "LANG")
PASSED_BEGINNINGS = ("COLONNADE_", "TF_", "KERAS_", "XLA_", "OMP_", *gpu.SETTINGS)
RESTARTS = 5


def run(
    command: Sequence[str],
    *,
    machines: str | None = None,
    local: int | None = None,
    private_network: bool = False,
    at_least: int | None = None,
    restarts: int | None = None,
    retries: int = 0,
    lease: Mapping[str, Any],
) -> int:
    """Run a program on several machines, and return its exit code.

    Args:
        command: the program and its arguments; no shell is involved.
        machines: which, as [user@]host[:cards] with commas between them.
        local: how many workers on this machine, in place of `machines`.
        private_network: no stranger reaches the ports of these machines.
        at_least: how many machines are enough to start; by default all of them at first, and 1 at a restart.
        restarts: how often to start anew, after exit code 75 and when a machine was lost; 5 by default.
        retries: of a program on one machine; there is none here.
        lease: what to lease on each machine, or for each worker: `cards`, `memory`, `timeout`, `share`,
            `virtual` and `directory` as `launch.run` takes them.
    """
    named = hosts(machines) if machines is not None else ()
    check("run", _problems(command, machines, local, at_least, restarts, retries))
    again = RESTARTS if restarts is None else restarts
    if local is not None:
        return _here(command, local, at_least, again, lease)
    places = _there(command, named, private_network, lease)
    return rounds(places, first=at_least or len(places), at_least=at_least or 1, restarts=again)


def _here(
    command: Sequence[str], count: int, at_least: int | None, restarts: int, lease: Mapping[str, Any]
) -> int:
    """Workers on this machine share one lease, taken at once: two launchers cannot each hold half of it."""
    cards, virtual = lease.get("cards"), lease.get("virtual")
    if cards is None and virtual is None and not launch.pool_of(1, None).slots:
        places = [_place_here(i, command, os.environ) for i in range(count)]
        return rounds(places, first=count, at_least=at_least or 1, restarts=restarts)
    each = virtual or 1 if cards is None else cards
    asked = {**lease, "cards": each * count, "virtual": virtual and virtual * count}
    try:
        with launch.leased(command, **asked) as held:
            slots, memory = held.claim.slots, held.claim.memory
            parts = [slots[i * each : (i + 1) * each] for i in range(count)]
            inside = [launch.on_cards(os.environ, part, memory, virtual is not None) for part in parts]
            places = [_place_here(i, command, inside[i], held.descriptor) for i in range(count)]
            return rounds(places, first=count, at_least=at_least or 1, restarts=restarts)
    except LeaseTimeout as error:
        print(f"colonnade: {error}", file=sys.stderr)
        return launch.TIMED_OUT
    except KeyboardInterrupt:
        return launch.INTERRUPTED


def _place_here(number: int, command: Sequence[str], inside: Mapping[str, str], *keep: int) -> Place:
    request = _request(command, {}, None)
    name = f"local-{number}"
    return Place(name, "127.0.0.1", remote_shell.here(), request, here=True, environment=inside, keep=keep)


def _there(
    command: Sequence[str], named: Sequence[Host], private_network: bool, lease: Mapping[str, Any]
) -> list[Place]:
    where = [remote_shell.address(host.target) for host in named]
    inside = passed(os.environ) | ({fence.PRIVATE: "1"} if private_network else {})
    check("run", _reach(named, where, inside))
    directory = lease.get("directory")
    asked = {**lease, "directory": directory and str(directory)}
    return [
        Place(
            host.name,
            address,
            remote_shell.there(host.target),
            _request(command, {**inside, **_hidden(host)}, _lease(asked, host)),
        )
        for host, address in zip(named, where, strict=True)
    ]


def _lease(asked: Mapping[str, Any], host: Host) -> dict[str, Any] | None:
    """What to lease on a machine: `:0` is no card at all."""
    if host.cards == 0:
        return None
    return {**asked, "cards": asked.get("cards") if host.cards is None else host.cards}


def _hidden(host: Host) -> dict[str, str]:
    """What keeps a program from cards that it has no lease of."""
    return {gpu.VISIBLE: "-1"} if host.cards == 0 else {}


def _request(
    command: Sequence[str], environment: Mapping[str, str], lease: dict[str, Any] | None
) -> dict[str, Any]:
    return {
        "directory": os.getcwd(),
        "command": list(command),
        "environment": dict(environment),
        "lease": lease,
    }


def passed(environ: Mapping[str, str]) -> dict[str, str]:
    """What of an environment goes to other machines."""
    return {
        name: value for name, value in environ.items() if name in PASSED or name.startswith(PASSED_BEGINNINGS)
    }


def _reach(named: Sequence[Host], where: Sequence[str], inside: Mapping[str, str]) -> Iterator[Problem]:
    """What is wrong with the network between the machines."""
    if len(where) > 1:
        refused = fence.problem(where, f"{PORTS.start}-{PORTS.stop - 1}", inside)
        if refused is not None:
            yield refused
    local = [host.name for host, address in zip(named, where, strict=True) if is_loopback(address)]
    if local and len(local) < len(where):
        rule = "is this machine itself, under a name by which the others cannot reach it"
        yield Problem("--machines", ", ".join(local), rule, "Use its name in the network")


def _problems(
    command: Sequence[str],
    machines: str | None,
    local: int | None,
    at_least: int | None,
    restarts: int | None,
    retries: int,
) -> Iterator[Problem]:
    if sys.platform != "linux":
        yield Problem("platform", sys.platform, "run needs Linux to end what it started", "Start it directly")
    if not command:
        yield Problem("command", "", "names no program", "Write it after --, as in: -- python train.py")
    if machines is None and local is None:
        rule = "is needed for --private-network, --at-least and --restarts"
        yield Problem("--machines", None, rule, "Try --machines a,b, or --local 2 for two workers here")
    if machines is not None and local is not None:
        yield Problem("--local", local, "is in place of --machines", "Give one of them")
    elif local is not None and local < 1:
        yield Problem("--local", local, "must be a whole number from 1 up", "Try --local 2")
    if machines is not None and not shutil.which("ssh"):
        yield Problem(
            "--machines", machines, "needs ssh, which is not here", "apt-get install openssh-client"
        )
    size = local if machines is None else machines.count(",") + 1
    if at_least is not None and size is not None and not 1 <= at_least <= size:
        yield Problem("--at-least", at_least, f"must be 1 to {size}, the machines there are", "Leave it out")
    if restarts is not None and restarts < 0:
        yield Problem("--restarts", restarts, "must be a whole number from 0 up", "Try --restarts 0 for none")
    if retries:
        yield Problem("--retries", retries, "is for a program on one machine", f"Use --restarts {retries}")
