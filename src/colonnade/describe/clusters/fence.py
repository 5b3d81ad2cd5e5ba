"""What keeps strangers from the ports of a cluster, and the refusal to open them without it.

Machines that join listen at their ports on all interfaces until all are there, and what they send each other
is neither encrypted nor signed.
"""

from collections.abc import Mapping, Sequence

from colonnade.describe.clusters.address import is_ip, is_loopback
from colonnade.errors import Problem

PRIVATE = "COLONNADE_PRIVATE_NETWORK"


def rules(hosts: Sequence[str], ports: str) -> tuple[str, ...]:
    """The commands for nftables by which these hosts reach these ports, and nobody else.

    >>> rules(["a", "b"], "2222")[-1]
    "nft add rule inet colonnade input tcp dport '{ 2222 }' drop"
    """
    six = [host for host in dict.fromkeys(hosts) if is_ip(host) and ":" in host]
    four = [host for host in dict.fromkeys(hosts) if host not in six]
    add = "nft add rule inet colonnade input"
    return (
        "nft add table inet colonnade",
        "nft add chain inet colonnade input '{ type filter hook input priority 0; }'",
        f"{add} iif lo accept",
        *(
            f"{add} {family} saddr '{{ {', '.join(group)} }}' tcp dport '{{ {ports} }}' accept"
            for family, group in (("ip", four), ("ip6", six))
            if group
        ),
        f"{add} tcp dport '{{ {ports} }}' drop",
    )


def problem(hosts: Sequence[str], ports: str, environ: Mapping[str, str]) -> Problem | None:
    """What is wrong with opening these ports, unless the user says that the network of the hosts is private.

    Nothing is wrong where all hosts are loopback: such a cluster is meant for this machine alone.
    """
    said = environ.get(PRIVATE)
    if said == "1" or all(map(is_loopback, hosts)):
        return None
    named = list(dict.fromkeys(hosts))
    places = ", ".join(named[:4]) + (", ..." if len(named) > 4 else "")
    rule = (
        f"must be 1, which says that no stranger reaches port {ports} of {places}. There, on all interfaces, "
        "machines wait for each other until all have come, and what they send is neither encrypted nor "
        "signed: whoever reaches a port meanwhile can take a machine's place, and whoever is on the way can "
        "read parameters and gradients, and so much of the data, and change them"
    )
    commands = "\n".join(f"      {command}" for command in rules(hosts, ports))
    fix = (
        "Fence the ports, then say so: colonnade run --private-network, or COLONNADE_PRIVATE_NETWORK=1. "
        "A fence is one of\n"
        "    - rules of the firewall on each machine, as root (they change nothing else):\n"
        f"{commands}\n"
        "    - WireGuard: name the machines by their addresses in it, and close these ports elsewhere\n"
        "    - a network namespace per job, which has a link to the other machines and none to the rest\n"
        "  See docs/machines.md"
    )
    return Problem(PRIVATE, said, rule, fix)
