"""An accelerator as the catalogue describes it: facts with their sources, read out in SI units."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from spaces.documents import Document
from spaces.errors import InputError
from spaces.precision import ComputeDtype, Dtype

Status = Literal["spec", "published", "measured", "derived", "estimate", "contradictory"]


class Fact(Document):
    """One figure: its value in the unit its key names, where it is from and how sure it is."""

    value: float = Field(ge=0)
    source: str
    status: Status = "spec"
    alternatives: tuple[float, ...] = ()
    note: str = ""


class MemoryLevel(Document):
    """One of several memories of a chip, its size and, where known, its bandwidth."""

    level: Literal["sram", "hbm", "ddr", "network"]
    gb: Fact
    gb_per_s: Fact | None = None


class ChipSpec(Document):
    """One accelerator in its usual system; keys carry their units, properties are SI.

    `hbm_gb` is the memory that weights and KV are served from, whatever it is made of. Chips with
    several memories list them all in `memory_levels`; a `ddr` level is attached to the chip itself
    and takes offloaded KV in place of host memory. A figure nobody knows is left out: what needs
    it raises `InputError`.
    """

    name: str
    title: str
    vendor: str
    aliases: tuple[str, ...] = ()
    checked: str
    efficiency: str = Field(description="which table of achieved fractions applies")
    manifest_resource: str = "nvidia.com/gpu"
    bf16_tflops: Fact | None = None
    fp8_tflops: Fact | None = None
    fp4_tflops: Fact | None = None
    hbm_gb: Fact
    hbm_gb_per_s: Fact
    memory_levels: tuple[MemoryLevel, ...] = ()
    chips_per_node: Fact | None = None
    scaleup_chips: Fact
    scaleup_gb_per_s: Fact | None = None
    scaleout_gb_per_s: Fact | None = None
    host_link_gb_per_s: Fact | None = None
    host_dram_gb: Fact | None = None
    host_dram_gb_per_s: Fact | None = None
    nvme_gb_per_s: Fact | None = None
    tdp_w: Fact | None = None
    idle_w: Fact | None = None
    all_in_w: Fact | None = None
    usd_per_hour: Fact | None = None
    sources: dict[str, str] = Field(default_factory=dict)

    def __hash__(self) -> int:
        return hash(self.name)

    def facts(self) -> dict[str, Fact]:
        """The figures the catalogue has for this chip, by key; of memory levels by their path."""
        found = {name: getattr(self, name) for name in type(self).model_fields}
        for level in self.memory_levels:
            path = f"memory_levels.{level.level}"
            found |= {f"{path}.gb": level.gb, f"{path}.gb_per_s": level.gb_per_s}
        return {name: fact for name, fact in found.items() if isinstance(fact, Fact)}

    def known(self, key: str) -> float:
        """The value of a figure; `InputError` where the catalogue has none."""
        fact = self.facts().get(key)
        if fact is None:
            raise InputError(
                f"the answer needs a figure of {self.name} that nobody has published",
                key=key,
                remedy="write it with its source into the chip's file, or take another chip",
            )
        return fact.value

    def peak_flops(self, dtype: ComputeDtype) -> float:
        """Dense peak in FLOP/s; 0 where the chip has no fp8 or fp4 units."""
        if dtype == "bf16":
            return self.known("bf16_tflops") * 1e12
        fact = {"fp8": self.fp8_tflops, "fp4": self.fp4_tflops}[dtype]
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
        """Usable memory for weights and KV in bytes."""
        return self.hbm_gb.value * 1e9

    @property
    def hbm_bytes_per_s(self) -> float:
        """Nominal bandwidth of that memory in bytes/s."""
        return self.hbm_gb_per_s.value * 1e9

    @property
    def scaleup_bytes_per_s(self) -> float:
        """Bandwidth of the scale-up fabric in bytes/s, one direction, per chip."""
        return self.known("scaleup_gb_per_s") * 1e9

    @property
    def scaleout_bytes_per_s(self) -> float:
        """Bandwidth of the chip's network card in bytes/s, one direction."""
        return self.known("scaleout_gb_per_s") * 1e9

    @property
    def host_link_bytes_per_s(self) -> float:
        """Bandwidth between chip and host memory in bytes/s, one direction."""
        return self.known("host_link_gb_per_s") * 1e9

    @property
    def own_dram(self) -> bool:
        """Whether a memory of the chip's own takes offloaded KV in place of host memory."""
        return any(level.level == "ddr" for level in self.memory_levels)

    @property
    def offload_gb(self) -> float:
        """Memory for offloaded KV in GB: the chip's own DRAM, else its share of the host's."""
        return self.known("memory_levels.ddr.gb" if self.own_dram else "host_dram_gb")

    @property
    def own_dram_bytes_per_s(self) -> float:
        """Bandwidth of the chip's own DRAM in bytes/s."""
        return self.known("memory_levels.ddr.gb_per_s") * 1e9

    @property
    def scaleup_size(self) -> int:
        """How many chips one scale-up domain joins."""
        return int(self.scaleup_chips.value)

    @property
    def node_size(self) -> int:
        """How many chips share one host."""
        return int(self.known("chips_per_node"))

    @property
    def power_w(self) -> float | None:
        """Watts per chip with its share of host and cooling, else the chip's own limit."""
        fact = self.all_in_w or self.tdp_w
        return fact.value if fact else None

    @property
    def idle_power_w(self) -> float | None:
        """`power_w` while an engine holds the chip and no step runs: its share of host and cooling
        is drawn all the time. `power_w` itself where nobody knows what the chip draws then, so
        that it is an upper bound.
        """
        if self.power_w is None or self.tdp_w is None or self.idle_w is None:
            return self.power_w
        return self.power_w - self.tdp_w.value + self.idle_w.value

    def estimates(self) -> list[str]:
        """Names of the figures that are estimates or contradicted."""
        return [
            name
            for name, fact in self.facts().items()
            if fact.status in ("estimate", "contradictory")
        ]
