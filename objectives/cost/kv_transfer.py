"""How much KV a request has, and how fast it moves between pools and to host memory."""

from __future__ import annotations

from dataclasses import dataclass

from objectives.cost.machine import SECONDS_PER_US
from objectives.cost.overheads import load_overheads
from spaces.chip import ChipSpec
from spaces.model import ModelSpec
from spaces.plan import Pool, Precision

_CHIPS_OF_A_NODE = 8  # a scale-up domain beyond one node is a rack that can hold several pools


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


def share_scaleup_domain(pool: Pool, chip: ChipSpec, other: Pool, other_chip: ChipSpec) -> bool:
    """Whether both pools fit together into one scale-up domain larger than a node."""
    domain = chip.scaleup_size
    return chip == other_chip and domain > _CHIPS_OF_A_NODE and pool.chips + other.chips <= domain


def host_link(pool: Pool, chip: ChipSpec) -> KvLink:
    """The links between a replica's chips and their host memory, taken together, one direction."""
    link = load_overheads().host_link
    coherent = chip.host_link_gb_per_s.value >= link.coherent_gb_per_s
    fraction = link.c2c_fraction if coherent else link.pcie_fraction
    line = pool.chips_per_replica * chip.host_link_bytes_per_s
    return KvLink(line * fraction, link.latency_us * SECONDS_PER_US)
