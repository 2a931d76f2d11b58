"""What chips are built into: systems, their hosts, and the links between the parts."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from spaces.chip import Fact
from spaces.documents import Document


class Described(Document):
    """An entry of the catalogue whose figures name their sources."""

    name: str
    title: str
    aliases: tuple[str, ...] = ()
    checked: str
    sources: dict[str, str] = Field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def facts(self) -> dict[str, Fact]:
        """The figures the catalogue has for this entry, by key."""
        found = {name: getattr(self, name) for name in type(self).model_fields}
        return {name: fact for name, fact in found.items() if isinstance(fact, Fact)}

    def estimates(self) -> list[str]:
        """Names of the figures that are estimates or contradicted."""
        return [
            name
            for name, fact in self.facts().items()
            if fact.status in ("estimate", "contradictory")
        ]


class SystemSpec(Described):
    """A system that is bought as a whole: how many chips share a node, and nodes one fabric.

    `chips` and `hosts` are catalogue names; a node has `hosts_per_node` processors of one of the
    `hosts`. `rack_kw` is the power of a rack.
    """

    chips: tuple[str, ...] = Field(min_length=1)
    hosts: tuple[str, ...] = ()
    chips_per_node: Fact
    hosts_per_node: Fact | None = None
    nodes_per_scaleup: Fact
    rack_kw: Fact | None = None
    rack_usd: Fact | None = None


class HostSpec(Described):
    """A processor that chips are attached to; memory is that of one socket."""

    vendor: str
    cores: Fact
    mem_gb: Fact
    mem_gb_per_s: Fact
    mem_channels: Fact | None = None
    pcie_lanes: Fact | None = None
    chip_link_gb_per_s: Fact | None = None
    tdp_w: Fact | None = None


class LinkSpec(Described):
    """A kind of link; `gb_per_s` is its nominal bandwidth in one direction."""

    kind: Literal["host", "scale-up", "network", "storage"]
    gb_per_s: Fact
