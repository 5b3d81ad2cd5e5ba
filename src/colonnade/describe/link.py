"""A device of a machine, and the link from one device to another; published figures are the defaults."""

from collections.abc import Iterable
from dataclasses import dataclass

from colonnade.describe import fields, speeds
from colonnade.errors import InvalidArgument, Problem, check


@dataclass(frozen=True)
class Device:
    """One device: a card, or a virtual CPU device."""

    name: str = "device"
    memory: int | None = None  # bytes
    flops: float | None = None  # peak FLOP/s in float32
    numa: int | None = None
    achieved: float | None = None  # FLOP/s of a large matrix product in float32, where it was measured
    cores: int | None = (
        None  # of the processor that it shares with all other devices of its machine that have some
    )
    achieved_half: float | None = None  # the same in 16 bits


DEVICE_RULES = {
    "name": fields.TEXT,
    "memory": fields.optional(fields.BYTES),
    "flops": fields.optional(fields.POSITIVE),
    "numa": fields.optional(fields.whole_from(0)),
    "achieved": fields.optional(fields.POSITIVE),
    "cores": fields.optional(fields.whole_from(1)),
    "achieved_half": fields.optional(fields.POSITIVE),
}


SLOWEST = 1e-9  # bytes per second; less is no link


def _kind_problem(kind: object) -> Problem:
    known = "NV1 to NV99, " + ", ".join(name for name in speeds.LEVELS if name != "NV")
    return Problem("kind", kind, "is no kind of link", f"One of: {known}")


def _link_problems(link: "Link") -> Iterable[Problem]:
    if not isinstance(link.kind, str) or not speeds.level(link.kind):
        yield _kind_problem(link.kind)
    for name, smallest in (("bandwidth", "above 0"), ("latency", "0 or more")):
        value = getattr(link, name)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        # What has no end is a bandwidth, and no latency; NaN is neither.
        least, endless = (SLOWEST, value == float("inf")) if name == "bandwidth" else (0, False)
        good = number and (endless or least <= value <= fields.LARGEST)
        if not good:
            yield Problem(
                name,
                fields.shown(value),
                f"must be a number, {smallest}",
                "Use bytes per second, and seconds",
            )
    if not isinstance(link.peer, bool):
        yield Problem("peer", link.peer, "must be True or False", "Try peer=True")


@dataclass(frozen=True)
class Link:
    """The way from one device to another.

    `kind` is what `nvidia-smi topo -m` calls it (NV4, PIX, PXB, PHB, NODE, SYS), or NET for another
    machine, MEM for devices that share one memory. `peer`: whether the devices reach each other's
    memory directly; without it everything goes through the host.
    """

    kind: str
    bandwidth: float  # bytes per second, one direction
    latency: float  # seconds
    peer: bool

    def __post_init__(self) -> None:
        check("Link", _link_problems(self))

    @property
    def tier(self) -> tuple[bool, int]:
        """Smaller is better: direct links before those through the host, then by kind."""
        return (not self.peer, speeds.LEVELS.index(speeds.level(self.kind)))

    @property
    def strength(self) -> tuple[int, int, float, float]:
        """Larger is better: the tier, and within it the bandwidth, then the latency."""
        through_host, level = self.tier
        return (-int(through_host), -level, self.bandwidth, -self.latency)

    @classmethod
    def of(cls, kind: str, *, peer: bool | None = None, card: str = "") -> "Link":
        """A link of this kind with published figures; `peer` by default as the kind suggests.

        >>> Link.of("PIX")
        Link(kind='PIX', bandwidth=12000000000.0, latency=6.3e-06, peer=True)
        """
        if not isinstance(kind, str) or not speeds.level(kind):
            raise InvalidArgument("Link", [_kind_problem(kind)])
        direct = speeds.suggests_peer(kind) if peer is None else peer
        return cls(kind, speeds.bandwidth(kind, direct, card), speeds.latency(kind, direct), direct)


SELF = Link.of("X")
SHARED = Link.of("MEM")
