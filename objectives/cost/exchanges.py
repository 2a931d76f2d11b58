"""All-to-all of experts over a network, as published for each library: fixed part and crossing.

    seconds(ep) = fixed + crossing x share of (token, expert) copies that cross the network

The share follows from the hierarchy: of `ep` ranks, `node` share the scale-up fabric.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np

from objectives.cost.kernel_work import Number
from spaces.documents import Document, read_yaml, validated

FILE = Path(__file__).parent / "exchanges.yaml"

Mode = Literal["low_latency", "normal"]


class PublishedExchange(Document):
    """One library on one network: an exchange of `tokens` a rank, hidden 7168, top-8 of 256."""

    hardware: str
    network: str
    library: str
    mode: Mode
    op: Literal["dispatch", "combine", "all_to_all"]
    tokens: int
    top_k: int
    node: int
    fixed_us: float
    crossing_us: float
    fitted_on_ep: tuple[int, int]

    def seconds(self, ep: Number) -> Number:
        """Seconds over `ep` ranks."""
        crossing = crossing_share(self.mode, ep, self.node, self.top_k)
        return np.maximum(self.fixed_us + self.crossing_us * crossing, 0.0) * 1e-6


class PublishedExchanges(Document):
    """All fitted exchanges, with their origin."""

    source: str
    date: str
    command: str
    fingerprint: str
    exchanges: tuple[PublishedExchange, ...]


def crossing_share(mode: Mode, ep: Number, node: int, top_k: int) -> Number:
    """Share of a token's `top_k` copies that leave its node, for experts spread over `ep` ranks.

    Low-latency kernels send each copy to its rank, so 1 - node/ep of them cross. Normal kernels
    send one copy to each remote node with an expert of the token and forward it there:
    (N - 1)(1 - (1 - 1/N)^k) / k for N nodes (DeepSeek-V3 report, 2412.19437, section 3.2.2,
    without its limit of four nodes).

    >>> crossing_share("low_latency", 32.0, 8, 8), crossing_share("normal", 16.0, 8, 8)
    (0.75, 0.12451171875)
    """
    nodes = np.maximum(np.asarray(ep, dtype=np.float64) / node, 1.0)
    if mode == "low_latency":
        share = 1.0 - 1.0 / nodes
    else:
        share = (nodes - 1.0) * (1.0 - (1.0 - 1.0 / nodes) ** top_k) / top_k
    return share if np.ndim(ep) else float(share)


@lru_cache(maxsize=1)
def load_exchanges() -> PublishedExchanges:
    """The fitted exchanges of `exchanges.yaml`."""
    return validated(PublishedExchanges, read_yaml(FILE), str(FILE))
