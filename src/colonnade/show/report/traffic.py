"""The devices and links of a run, and the bytes of a step that go over them: a picture of the page."""

import json
from dataclasses import dataclass

from colonnade.describe.device_order import in_order
from colonnade.describe.pictures.html import size
from colonnade.describe.pictures.machine_map import count_links, told, traffic_map
from colonnade.describe.run_folder import Run
from colonnade.describe.topology import Topology
from colonnade.errors import InvalidArgument
from colonnade.show.report import run_summary


@dataclass(frozen=True)
class LinkTraffic:
    """Of a run; `topology` is None where the links are not known, `damaged` where they cannot be read."""

    names: tuple[str, ...]
    links: dict[tuple[str, str], float]
    topology: Topology | None = None
    damaged: bool = False

    @classmethod
    def of(cls, run: Run) -> "LinkTraffic":
        listed = run.facts.get("devices")
        devices = dict.fromkeys(map(str, listed)) if isinstance(listed, list) else {}
        links = dict(run_summary.links(run))
        others = in_order({name for pair in links for name in pair} - devices.keys())
        plain = run.facts.get("topology")
        try:
            topology = None if plain is None else Topology.from_json(json.dumps(plain))
        except InvalidArgument:
            topology = None
        if topology is not None and len(topology) != len(devices):
            topology = None
        return cls((*devices, *others), links, topology, plain is not None and topology is None)

    @property
    def html(self) -> str:
        """The picture; none where there is nothing between devices."""
        between = any(source != target for source, target in self.links)
        if not between and (self.topology is None or len(self.topology) < 2):
            return ""
        if self.topology is not None:
            return traffic_map(self.names, self.topology, self.links)
        # Of the others nothing is known, not even whether they have a link.
        ends = in_order({name for pair in self.links for name in pair})
        return traffic_map(ends, None, self.links)

    @property
    def words(self) -> str:
        """What is to be seen on it."""
        total = sum(self.links.values())
        said = f"{size(total)} in all, as counted." if self.links else "No bytes were counted."
        if self.topology is not None and len(self.topology) > 1:
            kinds = [f"{told(link)} ({count:,})" for link, count in count_links(self.topology).most_common()]
            said += f" Links from one device to another: {'; '.join(kinds)}. Nothing goes over thin ones."
        return said
