"""How much KV a request has, and how fast it moves between pools and to host memory."""

from __future__ import annotations

from dataclasses import dataclass

from objectives.cost.machine import SECONDS_PER_US, Machine
from objectives.cost.overheads import load_overheads
from spaces.chip import ChipSpec
from spaces.model import ModelSpec
from spaces.plan import Pool, Precision
from spaces.precision import BYTES_PER_KV_ELEMENT, KvDtype
from spaces.sharding import share_scaleup_domain


@dataclass(frozen=True, slots=True)
class KvLink:
    """A way KV takes: bytes per second shared by all transfers on it, and start-up seconds."""

    bytes_per_s: float
    latency_s: float

    def seconds(self, moved_bytes: float) -> float:
        """Seconds of one transfer that has the link to itself."""
        return self.latency_s + moved_bytes / self.bytes_per_s


def kv_bytes_per_request(model: ModelSpec, precision: Precision, tokens: int) -> float:
    """Bytes of one copy of a request's cache, whole model: KV, full windows, recurrent state."""
    windowed = min(tokens, model.window_tokens)
    return (
        tokens * model.kv_bytes_per_token(precision.kv)
        + windowed * model.windowed_kv_bytes_per_token(precision.kv)
        + model.fixed_bytes_per_request(precision.kv)
    )


def rank_link(pool: Pool, chip: ChipSpec, other: Pool, other_chip: ChipSpec) -> KvLink:
    """What one attention rank of `pool` sends to or receives from the pool `other`.

    A request's KV lies on the tp x pp chips of its rank, and each of them moves a share over its
    own line; transfers reach 0.75 of the line. Pools of one chip kind that fit into one rack-scale
    domain together use its fabric, all others their network cards.
    """
    inside = share_scaleup_domain(pool, chip, other, other_chip)
    line = chip.scaleup_bytes_per_s if inside else chip.scaleout_bytes_per_s
    transfer = load_overheads().kv_transfer
    chips = pool.tp * pool.pp
    return KvLink(chips * line * transfer.fraction, transfer.latency_us * SECONDS_PER_US)


def staging_s_per_byte(pool: Pool, chip: ChipSpec) -> float:
    """Seconds for each byte of KV to go between the chips of a rank and host memory, one way.

    Each chip moves its share over its own link to the host.
    """
    fraction = load_overheads().host_link.pcie_fraction
    return 1.0 / (pool.tp * pool.pp * chip.host_link_bytes_per_s * fraction)


def conversion_s_per_byte(pool: Pool, machine: Machine, given: KvDtype, kept: KvDtype) -> float:
    """Seconds for each byte of KV given to a rank to be brought into the format it keeps.

    A pass over memory: every element is read as it came and written as it is kept,

        seconds per byte given = (1 + width kept / width given) / (chips x memory bandwidth),

    at the bandwidth of kernels that only move activations. A roofline, as of no conversion
    between engines a measurement is published; blocks, their order and the split of heads over
    ranks change in the same pass.
    """
    ratio = BYTES_PER_KV_ELEMENT[kept] / BYTES_PER_KV_ELEMENT[given]
    return (1.0 + ratio) / (pool.tp * pool.pp * machine.stream_bytes_per_s)


def host_link(pool: Pool, chip: ChipSpec) -> KvLink:
    """The links between a replica's chips and their offload memory, together, one direction.

    That is host memory behind PCIe or a chip-to-chip link, or the chips' own DRAM, of whose
    bandwidth the share of a PCIe link is taken to be reached.
    """
    link = load_overheads().host_link
    one = chip.own_dram_bytes_per_s if chip.own_dram else chip.host_link_bytes_per_s
    coherent = not chip.own_dram and one >= link.coherent_gb_per_s * 1e9
    fraction = link.c2c_fraction if coherent else link.pcie_fraction
    return KvLink(pool.chips_per_replica * one * fraction, link.latency_us * SECONDS_PER_US)
