"""What a simulation hands out: one row per request, one summary per pool."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from spaces.plan import Role

Seconds = npt.NDArray[np.float64]
Tokens = npt.NDArray[np.int64]
Counts = npt.NDArray[np.int32]
Places = npt.NDArray[np.int8]


@dataclass(frozen=True, slots=True)
class RequestRecords:
    """Arrays [n] over the requests of the workload, in its order.

    Times are seconds on the simulation's clock; those of a rejected request are NaN, save its
    arrival. Of those that were `sent` and not `finished` the ones `turned_away` came to a full
    queue, the others can never fit. A request that the load's horizon kept back was never `sent`;
    metrics are those of the `measured` ones, which the load neither sets aside nor sends in the
    warm-up.

    TTFT is exactly `frontend_s + queue_s + fetch_s + prefill_s + decode_wait_s + transfer_s`: on
    the way from the client to the engine's queue, waiting for admission, bringing prefix blocks in
    from lower tiers, computing the prompt (waits and preemptions between its chunks included),
    waiting for a place in the decode pool, and moving the KV there. The last two are zero where
    one pool does both. `decode_steps` are the steps that gave the tokens after the first: as many
    as those, or fewer where drafts were accepted. `entry_pool` is the place, among the scenario's
    pools, of the one whose queue a request entered first, `decode_pool` that of the one it was
    handed on to; -1 where there was none. `tool_wait_s` is how long the tool before a turn waited
    for a core of the hosts, before the turn was sent; NaN for a turn without one there.
    """

    finished: npt.NDArray[np.bool_]
    sent: npt.NDArray[np.bool_]
    turned_away: npt.NDArray[np.bool_]
    measured: npt.NDArray[np.bool_]
    arrival_s: Seconds
    first_token_s: Seconds
    finish_s: Seconds
    input_tokens: Tokens
    output_tokens: Tokens
    frontend_s: Seconds
    queue_s: Seconds
    fetch_s: Seconds
    prefill_s: Seconds
    decode_wait_s: Seconds
    transfer_s: Seconds
    hbm_hit_tokens: Counts
    host_hit_tokens: Counts
    ssd_hit_tokens: Counts
    store_hit_tokens: Counts
    preemptions: Counts
    decode_steps: Counts
    entry_pool: Places
    decode_pool: Places
    tool_wait_s: Seconds

    def waits_s(self, pool: int) -> Seconds:
        """Waits for admission to a pool, of the measured requests that finished [k]."""
        told = self.finished & self.measured
        entered = self.queue_s[told & (self.entry_pool == pool)]
        return np.concatenate([entered, self.decode_wait_s[told & (self.decode_pool == pool)]])

    @property
    def hit_tokens(self) -> Counts:
        """Prompt tokens taken from a cache, whichever tier held them [n]."""
        return np.asarray(
            self.hbm_hit_tokens
            + self.host_hit_tokens
            + self.ssd_hit_tokens
            + self.store_hit_tokens
        )

    @property
    def ttft_s(self) -> Seconds:
        """Time to first token [n]."""
        return self.first_token_s - self.arrival_s

    @property
    def e2e_s(self) -> Seconds:
        """End-to-end latency [n]."""
        return self.finish_s - self.arrival_s

    @property
    def tpot_s(self) -> Seconds:
        """Time per output token after the first [n]; NaN for a single-token answer."""
        gaps = np.where(self.output_tokens > 1, self.output_tokens - 1, np.nan)
        return np.asarray((self.finish_s - self.first_token_s) / gaps)


@dataclass(frozen=True, slots=True)
class PoolRecord:
    """What the replicas of a pool did, summed or averaged over them.

    `decode_request_steps` are its decoding requests summed over its steps: as many as
    `decode_tokens`, or fewer where drafts were accepted. `bubble_fraction` is the share of busy
    time in which pipeline stages (or, where decode is split, attention) waited for one another;
    `experts_utilization` the share of the run in which the experts' pool worked.
    `batch_steps[n]` are the steps with `n` requests of a replica, `kv_short_fraction` the share of
    steps in which a request waited that had a free seat but not the KV for it. The bytes are those
    of KV over its ranks' network, host and disk links, whose utilizations are the share of what
    they could have moved in the run.
    """

    role: Role
    replicas: int
    utilization: float
    steps: int
    mean_batch: float
    prefill_tokens: int
    decode_tokens: int
    decode_request_steps: int
    kv_capacity_tokens: int
    peak_kv_fraction: float
    bubble_fraction: float
    experts_utilization: float
    batch_steps: tuple[int, ...]
    kv_short_fraction: float
    network_bytes: float
    host_bytes: float
    ssd_bytes: float
    network_utilization: float
    host_link_utilization: float
    ssd_utilization: float
    copied_bytes: float
    copy_utilization: float


@dataclass(frozen=True, slots=True)
class TierBytes:
    """Bytes of KV fetched from each tier below HBM, and written to it.

    What is swapped counts as fetched, both ways.
    """

    host: float
    ssd: float
    store: float
    written_to_host: float
    written_to_ssd: float
    written_to_store: float


@dataclass(frozen=True, slots=True)
class HostRecord:
    """What the cores of the hosts did: the shares of the run that those of each kind worked."""

    front_end_cores: int
    front_end_utilization: float
    tool_cores: int
    tool_utilization: float


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """The outcome of one simulation.

    `gap_middle_s` and `gap_counts` are a histogram of all inter-token gaps (bins 0.9 % wide, those
    with gaps in them); `gap_mean_s` is exact. `makespan_s` ends with the last finished request.
    """

    requests: RequestRecords
    pools: tuple[PoolRecord, ...]
    makespan_s: float
    gap_middle_s: Seconds
    gap_counts: Tokens
    gap_mean_s: float
    handed_off_bytes: float
    tier_bytes: TierBytes
    closed_loop: bool
    hosts: HostRecord | None = None
