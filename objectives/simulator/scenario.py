"""What the simulator needs to know of a deployment, in numbers only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from objectives.cost.step_costs import StepCosts
from spaces.plan import Role, Router


@dataclass(frozen=True, slots=True)
class PoolSetup:
    """A pool of equal replicas, each of `ranks` attention data-parallel ranks in lock step.

    Seats, tokens of a step and KV blocks are those of one rank. `request_blocks` are taken by each
    running request beside its tokens. `host_tokens` is the room of a rank's host-memory tier, and
    `host_s_per_token` the time to fetch a token's KV from there. `link_bytes_per_s` is what one
    rank sends or receives.
    """

    role: Role
    replicas: int
    ranks: int
    seats: int
    step_tokens: int
    alternating: bool
    kv_blocks: int
    request_blocks: int
    costs: StepCosts
    host_tokens: int = 0
    host_s_per_token: float = 0.0
    link_bytes_per_s: float = float("inf")


@dataclass(frozen=True, slots=True)
class KvOnLink:
    """Bytes of a request's KV when it moves between pools, and the latency of each move."""

    token_bytes: float = 0.0
    window_token_bytes: float = 0.0
    window_tokens: int = 0
    request_bytes: float = 0.0
    latency_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Scenario:
    """One pool that does all, or a prefill pool followed by a decode pool.

    `frontend_s` is what lies between the client and the engine's queue, both ways together:
    parsing, tokenizing, routing, streaming back. With `keep_answers` the KV of an answer serves
    the next turn of its session (the chat template gives it back unchanged).
    """

    pools: tuple[PoolSetup, ...]
    block_tokens: int = 16
    prefix_caching: bool = True
    keep_answers: bool = True
    router: Router = "least-loaded"
    kv_on_link: KvOnLink = KvOnLink()
    frontend_s: float = 0.0

    @property
    def kind(self) -> Literal["aggregated", "prefill-decode"]:
        """The topology, as the number of pools tells it."""
        return "aggregated" if len(self.pools) == 1 else "prefill-decode"
