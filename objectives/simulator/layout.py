"""How a scenario, a workload and a load are laid out as the arrays of a `State`."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from objectives.simulator.layout_caches import tier_rows, tier_sizes, unused_slots, writer_rows
from objectives.simulator.layout_costs import cost_arrays
from objectives.simulator.layout_pools import (
    link_rows,
    pool_rows,
    rank_rows,
    replica_rows,
    station_rows,
)
from objectives.simulator.scenario import Scenario
from objectives.simulator.speculation import steps_of_answers
from objectives.simulator.state import (
    CLOCK,
    EVENT,
    FLOW,
    GAP_BINS,
    LEAST_LOADED,
    LEVELS,
    LRU,
    NONE,
    OFFLOAD,
    PREFIX_AFFINITY,
    REQUEST,
    ROUND_ROBIN,
    SEND,
    SHORTEST_QUEUE,
    WRITE_THROUGH,
    State,
)
from objectives.workload.load import OfferedLoad
from objectives.workload.workload import Workload
from spaces.plan import Retention, Router

_ROUTERS: dict[Router, int] = {
    "round-robin": ROUND_ROBIN,
    "least-loaded": LEAST_LOADED,
    "prefix-affinity": PREFIX_AFFINITY,
    "shortest-queue": SHORTEST_QUEUE,
}
# `drop-after-idle` is `lru` with an idle limit.
_RETENTIONS: dict[Retention, int] = {
    "lru": LRU,
    "write-through": WRITE_THROUGH,
    "offload-at-turn-end": OFFLOAD,
    "drop-after-idle": LRU,
}


def initial_state(scenario: Scenario, workload: Workload, load: OfferedLoad) -> State:
    """The state in which nothing has happened yet."""
    sharing = scenario.prefix_caching and workload.block_tokens > 0
    slot_tokens = workload.block_tokens if sharing else 1
    slot_blocks = -(-slot_tokens // scenario.block_tokens)
    blocks = int(workload.block_ids.max()) + 1 if sharing and len(workload.block_ids) else 0
    pools = pool_rows(scenario, sharing, slot_blocks)
    replicas = replica_rows(scenario)
    ranks = rank_rows(scenario)
    # Only pools that prompts enter keep a prefix cache, and their ranks come first.
    caching = int((pools["caching"][ranks["pool"]] == 1).sum()) if blocks else 0
    slots = int((pools["capacity_blocks"] // slot_blocks).max()) + 1 if blocks else 0
    room = tier_sizes(scenario, ranks, blocks, slot_tokens)
    most_seats = int(sum(pool.replicas * pool.ranks * pool.seats for pool in scenario.pools))
    roots = np.flatnonzero(workload.parent == NONE)
    clock = _clock(scenario, load, slot_tokens, ranks, room)
    _set_margins(clock, scenario, workload)
    return State(
        clock=clock,
        requests=_requests(scenario, workload, load, sharing),
        ranks=ranks,
        replicas=replicas,
        pools=pools,
        seats=np.full(most_seats, NONE, np.int64),
        # As the machine code expects it: a read-only array, say, would be compiled for again.
        chain=np.require(workload.block_ids, np.int32, ("C", "W")),
        roots=roots,
        turns_left=np.bincount(workload.session),
        slot_of=np.full((caching, blocks), NONE, np.int32),
        slots=unused_slots([min(slots, blocks + 1)] * caching),
        tiers=tier_rows(len(room)),
        tier_slot_of=np.full((len(room), blocks), NONE, np.int32),
        tier_slots=unused_slots(room),
        writers=writer_rows(ranks, int(clock.store_tier[0])),
        stations=station_rows(scenario.hosts),
        links=link_rows(scenario, ranks),
        flows=np.recarray(2 * int(clock.flow_margin[0]), FLOW),
        events=_first_events(clock, min(load.concurrency, len(roots))),
        **_pipelines(len(replicas), int(pools["stages"].max())),
        gaps=np.zeros(GAP_BINS, np.int64),
        block_ends=np.zeros(scenario.block_tokens + 2, np.int64),
        batches=np.zeros((len(pools), int((pools.ranks * pools.seats).max()) + 1), np.int64),
        **cost_arrays([pool.costs for pool in scenario.pools]),
    )


def _pipelines(replicas: int, stages: int) -> dict[str, Any]:
    """What is in the pipelines, with as many micro-batches as stages."""
    each = (replicas, stages)
    return {
        "stage_free_s": np.zeros(each),
        "flight_ids": np.full(each, NONE, np.int64),
        "flight_end_s": np.zeros(each),
        "flight_requests": np.zeros(each, np.int64),
        "flight_s": np.zeros((*each, stages)),
        "flight_slope_s": np.zeros((*each, stages)),
        "rolling_s": np.zeros((3, stages)),
        "rolled_s": np.zeros((2, stages)),
        "leads_s": np.zeros((2, stages, stages)),
        "turned": np.zeros(stages, np.int64),
    }


def _clock(
    scenario: Scenario, load: OfferedLoad, slot_tokens: int, ranks: np.recarray, room: list[int]
) -> np.recarray:
    clock = np.zeros(1, CLOCK).view(np.recarray)
    link = scenario.kv_on_link
    clock.closed_loop = load.concurrency
    clock.horizon_s = load.horizon_s
    clock.idle_cap_s = load.system_idle_cap_s
    clock.router = _ROUTERS[scenario.router]
    clock.frontend_s = scenario.frontend_s
    if scenario.hosts is not None:
        clock.host_request_s = scenario.hosts.request_s
        clock.host_token_s = scenario.hosts.token_s
    clock.keep_answers = scenario.keep_answers
    clock.retention = _RETENTIONS[scenario.retention]
    clock.idle_limit_s = scenario.idle_limit_s
    clock.midfill_tokens = scenario.midfill_tokens
    clock.fetch_when_faster = scenario.fetch_when_faster
    clock.layers = scenario.layers
    clock.prefetch = scenario.prefetch
    clock.queue_limit = scenario.max_queued or 0
    clock.try_others = scenario.try_others
    clock.send_layers = scenario.send_layers
    own_tiers = int((ranks["host_tier"] != NONE).sum() + (ranks["ssd_tier"] != NONE).sum())
    clock.store_tier = own_tiers if len(room) > own_tiers else NONE
    clock.store_link = 3 * len(ranks)
    clock.block_tokens = scenario.block_tokens
    clock.slot_tokens = slot_tokens
    clock.transfer_latency_s = link.latency_s
    clock.token_bytes = link.token_bytes or 1.0
    clock.window_token_bytes = link.window_token_bytes
    clock.window = link.window_tokens
    clock.fixed_bytes = link.request_bytes
    return clock


def _set_margins(clock: np.recarray, scenario: Scenario, workload: Workload) -> None:
    """The most events and flows that one event can add.

    At the end of a step every request of a replica may end, which sends the turns that wait for
    it, begins a session, sends a part of its KV and lets the next one ask the decode pool; others
    may be swapped out, or admitted, each with one flow from every tier, and as many may be fetched
    for ahead. A rank begins to write to each tier at most once.
    """
    ranks = sum(pool.replicas * pool.ranks for pool in scenario.pools)
    seats = max(pool.ranks * pool.seats for pool in scenario.pools)
    waiting = workload.parent[workload.parent != NONE]
    turns = int(np.bincount(waiting).max(initial=0)) if len(waiting) else 0
    clock.event_margin = seats * (turns + 6) + 64
    clock.flow_margin = seats * 13 + ranks * LEVELS + 64


def _first_events(clock: np.recarray, sessions: int) -> np.recarray:
    """Room for events, with those that begin the first sessions of a closed loop."""
    events = np.recarray(sessions + 2 * int(clock.event_margin[0]), EVENT)
    for serial in range(1, sessions + 1):
        events[serial - 1] = (0.0, SEND, serial, NONE, 0)
    clock.events = clock.serial = sessions
    return events


def _requests(
    scenario: Scenario, workload: Workload, load: OfferedLoad, sharing: bool
) -> np.recarray:
    requests = np.zeros(len(workload), REQUEST).view(np.recarray)
    requests.arrival_s = load.arrival_s
    requests.input = workload.input_tokens
    requests.output = workload.output_tokens
    requests.steps_left = steps_of_answers(scenario, workload.output_tokens)
    if sharing:
        requests.chain_start = workload.block_offsets[:-1]
        requests.chain_length = np.diff(workload.block_offsets)
    requests.session = workload.session
    requests.gap_s = workload.gap_s
    requests.tool_s = workload.tool_s
    _link_turns(requests, workload.parent)
    requests.next = NONE
    requests.flight = NONE
    requests.source_rank = NONE
    requests.decode_rank = NONE
    for name in ("admitted_s", "fetched_s", "prefilled_s", "decode_admitted_s", "first_token_s"):
        requests[name] = -1.0
    return requests


def _link_turns(requests: np.recarray, parent: npt.NDArray[np.int32]) -> None:
    """Chain the turns that wait for the same one, in their order."""
    requests.first_child = NONE
    requests.next_sibling = NONE
    turns = np.flatnonzero(parent != NONE)
    turns = turns[np.argsort(parent[turns], kind="stable")]
    waited_for = parent[turns]
    begins = np.diff(waited_for, prepend=NONE) != 0
    requests["first_child"][waited_for[begins]] = turns[begins]
    requests["next_sibling"][turns[:-1][~begins[1:]]] = turns[1:][~begins[1:]]
