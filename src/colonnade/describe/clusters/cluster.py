"""The machines that train together, as one program among them sees it: who the others are, which one it is.

A machine here is one process with its devices. Who started it says so in its environment, the first of these:

    TF_CONFIG       Kubernetes (TFJob), Ray Train, `colonnade run --machines` and `--local`
    SLURM_STEP_...  srun

and besides, where it is known:

    COLONNADE_GENERATION       how often this cluster was started before: 0, 1, ...
    COLONNADE_MACHINES         what the machines are called, in the order of their addresses
    COLONNADE_CLUSTER          anything that another cluster at the same addresses does not have
    COLONNADE_PRIVATE_NETWORK  1: no stranger reaches the ports of the cluster
"""

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from colonnade.describe.clusters import fence, slurm_step, tf_config
from colonnade.describe.clusters.address import amiss, is_loopback, parted, repeated
from colonnade.describe.fields import shown
from colonnade.errors import InvalidArgument, Problem, check, is_whole

WHERE = "joining other machines"
GENERATION = "COLONNADE_GENERATION"
MACHINES = "COLONNADE_MACHINES"
IDENTITY = "COLONNADE_CLUSTER"
RESTARTS = "SLURM_RESTART_COUNT"


@dataclass(frozen=True)
class Cluster:
    """The machines of one training.

    Args:
        addresses: where each of them listens, "host:port".
        rank: which of them this program is, from 0.
        names: what they are called in logs and errors; by default their hosts, and where a host is there more
            than once `host/0`, `host/1`.
        generation: how often this cluster was started before, where its starter says it. A later start has a
            higher one; of two starts by different starters it says nothing.
        source: who said all this: `TF_CONFIG`, `Slurm`, `colonnade run`, or `program`.
        identity: what another cluster at the same addresses does not have, such as the number of a job.

    Example:
        >>> cluster = Cluster(("a:2222", "b:2222", "b:2223"), rank=1)
        >>> cluster.size, cluster.name, cluster.names
        (3, 'b/0', ('a', 'b/0', 'b/1'))
    """

    addresses: tuple[str, ...]
    rank: int
    names: tuple[str, ...] = ()
    generation: int = 0
    source: str = "program"
    identity: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "addresses", tuple(self.addresses))
        check(WHERE, self._problems())
        if not self.names:
            object.__setattr__(self, "names", _names(self.addresses))

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> "Cluster | None":
        """The cluster that the environment tells of; None where it tells of none: a program alone."""
        problems: list[Problem] = []
        generation = _generation(environ, problems)
        names = tuple(environ[MACHINES].split(",")) if environ.get(MACHINES) else ()
        if environ.get(tf_config.NAME):
            source = "colonnade run" if GENERATION in environ else "TF_CONFIG"
            place, identity = tf_config.read(environ[tf_config.NAME], problems), environ.get(IDENTITY, "")
        else:
            source, names = "Slurm", ()
            place, identity = slurm_step.read(environ, problems), slurm_step.identity(environ)
        if place is None:
            return None
        addresses, rank = place
        if names and len(names) != len(addresses) and not problems:
            rule = f"there are {len(names)} names for {len(addresses)} addresses"
            problems.append(Problem(MACHINES, environ[MACHINES], rule, f"Leave {MACHINES} out"))
        check(WHERE, problems)
        return cls(addresses, rank, names, generation, source, identity)

    @property
    def size(self) -> int:
        """How many machines there are, this one included."""
        return len(self.addresses)

    @property
    def name(self) -> str:
        """What this machine is called."""
        return self.names[self.rank]

    @property
    def beside(self) -> int:
        """How many of the machines are processes of one and the same host, this program's."""
        hosts = [parted(address)[0] for address in self.addresses]
        own = hosts[self.rank]
        return sum(host == own or (is_loopback(host) and is_loopback(own)) for host in hosts)

    @property
    def digest(self) -> str:
        """Tells it from other clusters, one of which may come to its door by mistake."""
        return hashlib.sha256(repr((self.identity, self.addresses)).encode()).hexdigest()[:16]

    @property
    def tf_config(self) -> str:
        """TF_CONFIG of this cluster, in which all tasks are workers, by rank."""
        return tf_config.written(self.addresses, self.rank)

    def check_private(self, environ: Mapping[str, str]) -> None:
        """Refuse to open a port that a stranger could reach, unless the user says that none can.

        Good are a cluster of one, which opens none; one whose addresses are all loopback, which is meant for
        this machine alone; and any where COLONNADE_PRIVATE_NETWORK is 1.
        """
        hosts, ports = zip(*map(parted, self.addresses), strict=True)
        refused = fence.problem(hosts, ", ".join(map(str, sorted(set(ports)))), environ)
        if self.size > 1 and refused is not None:
            raise InvalidArgument(WHERE, [refused])

    def _problems(self) -> Iterator[Problem]:
        if not self.addresses:
            yield Problem("addresses", (), "a cluster has at least one machine", "Try ('a:2222', 'b:2222')")
        for i, address in enumerate(self.addresses):
            yield from amiss(f"addresses[{i}]", address)
        yield from repeated({f"addresses[{i}]": address for i, address in enumerate(self.addresses)})
        if not is_whole(self.rank, 0, max(0, len(self.addresses) - 1)):
            rule = f"there is no such machine: they are 0 to {len(self.addresses) - 1}"
            yield Problem("rank", shown(self.rank), rule, "Try rank=0")
        if self.names and len(self.names) != len(self.addresses):
            rule = f"there are {len(self.names)} names for {len(self.addresses)} addresses"
            yield Problem("names", shown(self.names), rule, "Leave them out")
        if len(set(self.names)) < len(self.names) or not all(self.names):
            yield Problem(
                "names", shown(self.names), "each machine needs a name of its own", "Leave them out"
            )
        if not is_whole(self.generation, 0):
            yield Problem("generation", shown(self.generation), "must be a whole number from 0 up", "Try 0")


def _names(addresses: tuple[str, ...]) -> tuple[str, ...]:
    hosts = [parted(address)[0] for address in addresses]
    times = Counter(hosts)
    return tuple(
        host if times[host] == 1 else f"{host}/{hosts[:i].count(host)}" for i, host in enumerate(hosts)
    )


def _generation(environ: Mapping[str, str], problems: list[Problem]) -> int:
    """How often the cluster was started before: `colonnade run` says it, or Slurm of a job it put back."""
    name = GENERATION if GENERATION in environ else RESTARTS
    text = environ.get(name, "0")
    if text.isascii() and text.isdigit() and len(text) < 10:
        return int(text)
    problems.append(Problem(name, shown(text), "must be a whole number from 0 up", f"Leave {name} out"))
    return 0
