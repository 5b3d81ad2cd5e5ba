"""Where a task of a cluster listens: "host:port", as TensorFlow writes it, and what is wrong with one."""

import ipaddress
import re
from collections.abc import Iterator, Mapping

from colonnade.describe.fields import shown
from colonnade.errors import Problem

# What a host may be called: letters, digits, dots, hyphens and underscores, and no hyphen at first, so that a
# name can be taken neither for an option of a program nor for anything that means something to a shell.
HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9_.])?")
_ADDRESS = re.compile(r"(?:\[(?P<six>[^\]]*)\]|(?P<host>[^:\[\]]*)):(?P<port>[0-9]{1,5})")


def parted(address: str) -> tuple[str, int]:
    """The host and the port of an address that nothing is wrong with.

    >>> parted("n1:2222"), parted("[::1]:80")
    (('n1', 2222), ('::1', 80))
    """
    match = _ADDRESS.fullmatch(address)
    assert match is not None, address
    return match["six"] or match["host"], int(match["port"])


def joined(host: str, port: int) -> str:
    """The address of a port of a host; an IPv6 address goes into brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def amiss(argument: str, address: object) -> Iterator[Problem]:
    """What is wrong with an address, if anything."""
    match = _ADDRESS.fullmatch(address) if isinstance(address, str) else None
    fix = "Write it as in n1:2222 or [fd00::1]:2222"
    if match is None:
        missing = isinstance(address, str) and (HOST.fullmatch(address) or is_ip(address))
        rule = "has no port" if missing else "must be an address, host:port"
        yield Problem(argument, shown(address), rule, fix)
        return
    host, port = match["six"] or match["host"] or "", int(match["port"])
    if not 1 <= port <= 65535:
        yield Problem(argument, shown(address), f"{port} is no port: they are 1 to 65535", fix)
    if match["six"] is not None and not is_ip(host):
        yield Problem(argument, shown(address), "what is in brackets must be an IPv6 address", fix)
    elif match["six"] is None and not HOST.fullmatch(host):
        yield Problem(argument, shown(address), f"{shown(host)!r} is no name of a host", fix)
    elif is_ip(host) and ipaddress.ip_address(host).is_unspecified:
        yield Problem(argument, shown(address), "names no host that others could reach", fix)


def repeated(addresses: Mapping[str, object]) -> Iterator[Problem]:
    """A problem for each address that two tasks have; the keys say where the addresses are written."""
    first: dict[str, str] = {}
    for argument, address in addresses.items():
        if isinstance(address, str) and first.setdefault(address, argument) != argument:
            rule = f"is the address of {first[address]} too"
            yield Problem(argument, shown(address), rule, "Give each task a host or a port of its own")


def is_ip(host: str) -> bool:
    """Whether a host is given by its number and not by a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Whether a host is this machine under the name that every machine has for itself.

    A name is not looked up: what it means may differ between machines, and from one day to the next.
    """
    return host == "localhost" or (is_ip(host) and ipaddress.ip_address(host).is_loopback)
