"""An accelerator as the catalogue describes it: facts with their sources, read out in SI units."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from spaces.documents import Document
from spaces.precision import ComputeDtype, Dtype

Status = Literal["spec", "published", "measured", "derived", "estimate", "contradictory"]


class Fact(Document):
    """One figure: its value in the unit its key names, where it is from and how sure it is."""

    value: float = Field(ge=0)
    source: str
    status: Status = "spec"
    alternatives: tuple[float, ...] = ()
    note: str = ""


class ChipSpec(Document):
    """One accelerator in its usual system; keys carry their units, properties are SI."""

    name: str
    title: str
    vendor: str
    aliases: tuple[str, ...] = ()
    checked: str
    efficiency: str = Field(description="which table of achieved fractions applies")
    manifest_resource: str = "nvidia.com/gpu"
    bf16_tflops: Fact
    fp8_tflops: Fact | None = None
    fp4_tflops: Fact | None = None
    hbm_gb: Fact
    hbm_gb_per_s: Fact
    chips_per_node: Fact
    scaleup_chips: Fact
    scaleup_gb_per_s: Fact
    scaleout_gb_per_s: Fact
    host_link_gb_per_s: Fact
    host_dram_gb: Fact
    host_dram_gb_per_s: Fact | None = None
    tdp_w: Fact
    all_in_w: Fact | None = None
    usd_per_hour: Fact | None = None
    sources: dict[str, str] = Field(default_factory=dict)

    def __hash__(self) -> int:
        return hash(self.name)

    def facts(self) -> dict[str, Fact]:
        """The figures the catalogue has for this chip, by key."""
        found = {name: getattr(self, name) for name in type(self).model_fields}
        return {name: fact for name, fact in found.items() if isinstance(fact, Fact)}

    def peak_flops(self, dtype: ComputeDtype) -> float:
        """Dense peak in FLOP/s; 0 where the chip has no such units."""
        fact = {"bf16": self.bf16_tflops, "fp8": self.fp8_tflops, "fp4": self.fp4_tflops}[dtype]
        return fact.value * 1e12 if fact else 0.0

    def compute_dtype(self, weights: Dtype) -> ComputeDtype:
        """The format in which this chip multiplies weights of a given format.

        Four-bit weights are multiplied in fp4 where the chip can, else unpacked to bf16; int4 is
        always unpacked.
        """
        if weights == "fp8" and self.fp8_tflops:
            return "fp8"
        if weights in ("nvfp4", "mxfp4") and self.fp4_tflops:
            return "fp4"
        return "bf16"

    @property
    def hbm_bytes(self) -> float:
        """Usable high-bandwidth memory in bytes."""
        return self.hbm_gb.value * 1e9

    @property
    def hbm_bytes_per_s(self) -> float:
        """Nominal HBM bandwidth in bytes/s."""
        return self.hbm_gb_per_s.value * 1e9

    @property
    def scaleup_bytes_per_s(self) -> float:
        """Bandwidth of the scale-up fabric in bytes/s, one direction, per chip."""
        return self.scaleup_gb_per_s.value * 1e9

    @property
    def scaleout_bytes_per_s(self) -> float:
        """Bandwidth of the chip's network card in bytes/s, one direction."""
        return self.scaleout_gb_per_s.value * 1e9

    @property
    def host_link_bytes_per_s(self) -> float:
        """Bandwidth between chip and host memory in bytes/s, one direction."""
        return self.host_link_gb_per_s.value * 1e9

    @property
    def scaleup_size(self) -> int:
        """How many chips one scale-up domain joins."""
        return int(self.scaleup_chips.value)

    @property
    def node_size(self) -> int:
        """How many chips share one host."""
        return int(self.chips_per_node.value)

    @property
    def power_w(self) -> float:
        """Watts per chip with its share of host and cooling, else the chip's own limit."""
        return (self.all_in_w or self.tdp_w).value

    def estimates(self) -> list[str]:
        """Names of the figures that are estimates or contradicted."""
        return [
            name
            for name, fact in self.facts().items()
            if fact.status in ("estimate", "contradictory")
        ]
