"""From a scenario and an offered load to request records: lays the state out, runs the loop."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from objectives.cost.step_costs import COEFFICIENTS, AttentionTables, Floats, StepCosts
from objectives.simulator.loop import run
from objectives.simulator.records import (
    HostRecord,
    PoolRecord,
    RequestRecords,
    SimulationResult,
    TierBytes,
)
from objectives.simulator.scenario import HostSetup, PoolSetup, Scenario
from objectives.simulator.speculation import steps_of_answers
from objectives.simulator.state import (
    CLOCK,
    EVENT,
    EXPECTED,
    FINISHED,
    FLOW,
    FRONT_END,
    GAP_BINS,
    GAP_MAX_S,
    GAP_MIN_S,
    LEAST_LOADED,
    LEVELS,
    LINK,
    LRU,
    NONE,
    OFFLOAD,
    POOL,
    PREFIX_AFFINITY,
    RANK,
    REJECTED,
    REPLICA,
    REQUEST,
    ROUND_ROBIN,
    SEND,
    SHORTEST_QUEUE,
    SLOT,
    STATION,
    TIER,
    TOOL,
    TURNED_AWAY,
    WRITE_THROUGH,
    WRITER,
    Records,
    State,
)
from objectives.workload.load import OfferedLoad
from objectives.workload.workload import Workload
from spaces.errors import InputError
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


def simulate(scenario: Scenario, workload: Workload, load: OfferedLoad) -> SimulationResult:
    """Serve every request of `workload` under `load`; the same input gives the same bytes.

    Raises `InputError` where the load asks to skip idle time that is not its own to skip.
    """
    if np.isfinite(load.system_idle_cap_s) and not load.concurrency:
        raise InputError(
            "idle time is skipped only in a closed loop",
            where=workload.name,
            key="system_idle_cap_s",
            value=load.system_idle_cap_s,
            remedy="leave it out, or ask for a concurrency",
        )
    drafts = {pool.costs.verified_tokens - 1 for pool in scenario.pools} - {0}
    assert drafts <= {len(scenario.acceptance)}, "costs and acceptance differ in their drafts"
    state = _initial_state(scenario, workload, load)
    while not run(*state):
        state = _with_more_room(state)
    settled = np.isin(state.requests["phase"], (FINISHED, REJECTED, TURNED_AWAY))
    unsent = state.requests["phase"] == EXPECTED
    assert (settled | (unsent & np.isfinite(load.horizon_s))).all(), "a request was lost"
    return _result(scenario, state, load)


def _with_more_room(state: State) -> State:
    """The same state with arrays of events and flows twice as long."""
    return state._replace(events=_longer(state.events), flows=_longer(state.flows))


def _longer(records: Records) -> np.recarray:
    return np.concatenate([records, np.empty_like(records)]).view(np.recarray)


def _initial_state(scenario: Scenario, workload: Workload, load: OfferedLoad) -> State:
    sharing = scenario.prefix_caching and workload.block_tokens > 0
    slot_tokens = workload.block_tokens if sharing else 1
    slot_blocks = -(-slot_tokens // scenario.block_tokens)
    blocks = int(workload.block_ids.max()) + 1 if sharing and len(workload.block_ids) else 0
    pools = _pools(scenario, sharing, slot_blocks)
    replicas = _replicas(scenario)
    ranks = _ranks(scenario)
    # Only pools that prompts enter keep a prefix cache, and their ranks come first.
    caching = int((pools["caching"][ranks["pool"]] == 1).sum()) if blocks else 0
    slots = int((pools["capacity_blocks"] // slot_blocks).max()) + 1 if blocks else 0
    room = _tier_slots(scenario, ranks, blocks, slot_tokens)
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
        chain=workload.block_ids,
        roots=roots,
        turns_left=np.bincount(workload.session),
        slot_of=np.full((caching, blocks), NONE, np.int32),
        slots=_unused_slots([min(slots, blocks + 1)] * caching),
        tiers=_tiers(len(room)),
        tier_slot_of=np.full((len(room), blocks), NONE, np.int32),
        tier_slots=_unused_slots(room),
        writers=_writers(ranks, int(clock.store_tier[0])),
        stations=_stations(scenario.hosts),
        links=_links(scenario, ranks),
        flows=np.recarray(2 * int(clock.flow_margin[0]), FLOW),
        events=_first_events(clock, min(load.concurrency, len(roots))),
        **_pipelines(len(replicas), int(pools["stages"].max())),
        gaps=np.zeros(GAP_BINS, np.int64),
        block_ends=np.zeros(scenario.block_tokens + 2, np.int64),
        batches=np.zeros((len(pools), int((pools.ranks * pools.seats).max()) + 1), np.int64),
        **_cost_arrays([pool.costs for pool in scenario.pools]),
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


def _tier_slots(
    scenario: Scenario, ranks: np.recarray, blocks: int, slot_tokens: int
) -> list[int]:
    """Prefix blocks of each tier there is; notes in `ranks` which tier is whose.

    Host memory and disk of every caching rank come first, the shared store last.
    """
    room: list[int] = []
    for rank in ranks if blocks else ():
        setup = scenario.pools[rank.pool]
        if setup.role == "decode":
            continue
        for name, tokens in (("host_tier", setup.host_tokens), ("ssd_tier", setup.ssd_tokens)):
            if tokens >= slot_tokens:
                rank[name] = len(room)
                room.append(min(tokens // slot_tokens, blocks + 1))
    if blocks and scenario.store is not None and scenario.store.tokens >= slot_tokens:
        room.append(min(scenario.store.tokens // slot_tokens, blocks + 1))
    return room


def _tiers(count: int) -> np.recarray:
    tiers = np.zeros(count, TIER).view(np.recarray)
    tiers["oldest"] = tiers["newest"] = NONE
    return tiers


def _writers(ranks: np.recarray, store_tier: int) -> np.recarray:
    """Of each rank, what writes to its host memory, its disk and the store."""
    writers = np.zeros(len(ranks) * LEVELS, WRITER).view(np.recarray)
    writers["first_waiting"] = writers["last_waiting"] = writers["first_moving"] = NONE
    writers["tier"][0::LEVELS] = ranks["host_tier"]
    writers["tier"][1::LEVELS] = ranks["ssd_tier"]
    writers["tier"][2::LEVELS] = store_tier
    return writers


def _stations(hosts: HostSetup | None) -> np.recarray:
    stations = np.zeros(2, STATION).view(np.recarray)
    stations["head"] = stations["tail"] = NONE
    if hosts is not None:
        stations["cores"][[FRONT_END, TOOL]] = hosts.front_end_cores, hosts.tool_cores
    return stations


def _links(scenario: Scenario, ranks: np.recarray) -> np.recarray:
    """Network, host and disk link of each rank, then the store's, and ranks' ways of copying."""
    links = np.zeros(4 * len(ranks) + 1, LINK).view(np.recarray)
    token_bytes = scenario.kv_on_link.token_bytes or 1.0
    for place, rank in enumerate(ranks):
        setup = scenario.pools[rank.pool]
        rank.net_link, rank.host_link, rank.ssd_link = range(3 * place, 3 * place + 3)
        links["bytes_per_s"][3 * place : 3 * place + 3] = (
            setup.link_bytes_per_s,
            token_bytes / setup.host_s_per_token if setup.host_s_per_token else np.inf,
            token_bytes / setup.ssd_s_per_token if setup.ssd_s_per_token else np.inf,
        )
        rank.copy_link = 3 * len(ranks) + 1 + place
        copy_s = setup.copy_s_per_byte
        links["bytes_per_s"][rank.copy_link] = 1 / copy_s if copy_s else np.inf
    links["bytes_per_s"][3 * len(ranks)] = scenario.store.bytes_per_s if scenario.store else np.inf
    return links


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


def _pools(scenario: Scenario, sharing: bool, slot_blocks: int) -> np.recarray:
    pools = np.zeros(len(scenario.pools), POOL).view(np.recarray)
    first_replica = 0
    for place, setup in enumerate(scenario.pools):
        pool = pools[place]
        pool.first_replica, pool.replicas = first_replica, setup.replicas
        pool.ranks, pool.stages = setup.ranks, setup.costs.stages
        pool.seats, pool.step_tokens = setup.seats, setup.step_tokens
        pool.alternating = setup.alternating
        pool.admission_steps = setup.admission_steps
        pool.admission_together = setup.admission_together
        pool.hands_off = setup.role in ("prefill", "midfill")
        pool.capacity_blocks, pool.fixed_blocks = setup.kv_blocks, setup.request_blocks
        pool.caching = sharing and setup.role != "decode"
        pool.stores_answers = (
            sharing
            and setup.role == "decode"
            and scenario.store is not None
            and scenario.retention != "lru"
            and setup.stores_answers
        )
        pool.blocks_per_slot = slot_blocks
        pool.watermark_blocks = setup.watermark_blocks
        pool.swap_tokens = setup.swap_tokens
        pool.verified = setup.costs.verified_tokens
        split = setup.costs.split
        pool.micro_batches = split.micro_batches if split else 1
        pool.split_layers = split.layers if split else 0
        pool.flight_requests = setup.flight_requests or 0
        tables = setup.costs.tables
        if tables is not None:
            pool.table_tokens = tables.context_tokens
            pool.several_decodes = tables.several_decodes
            pool.several_chunks = tables.several_chunks
        pool.window = setup.costs.window_tokens
        pool.host_s, pool.request_s = setup.costs.host_s, setup.costs.request_s
        first_replica += setup.replicas
    return pools


def _replicas(scenario: Scenario) -> np.recarray:
    replicas = np.zeros(sum(pool.replicas for pool in scenario.pools), REPLICA).view(np.recarray)
    place = first_rank = 0
    for pool_id, setup in enumerate(scenario.pools):
        for _ in range(setup.replicas):
            replicas[place].pool = pool_id
            replicas[place].first_rank = first_rank
            place += 1
            first_rank += setup.ranks
    return replicas


def _ranks(scenario: Scenario) -> np.recarray:
    count = sum(pool.replicas * pool.ranks for pool in scenario.pools)
    ranks = np.zeros(count, RANK).view(np.recarray)
    for name in (
        "queue_head",
        "queue_tail",
        "oldest",
        "newest",
        "host_tier",
        "ssd_tier",
        "match_request",
    ):
        ranks[name] = NONE
    place = replica = first_seat = 0
    for pool_id, setup in enumerate(scenario.pools):
        for _ in range(setup.replicas):
            for _ in range(setup.ranks):
                ranks[place].pool = pool_id
                ranks[place].replica = replica
                ranks[place].seats_start = first_seat
                place += 1
                first_seat += setup.seats
            replica += 1
    return ranks


def _unused_slots(sizes: list[int]) -> np.recarray:
    """Slots [len(sizes), largest size], each row's first ones chained as unused."""
    unused = np.zeros((len(sizes), max(sizes, default=0)), SLOT).view(np.recarray)
    for row, size in enumerate(sizes):
        unused["newer"][row, :size] = np.append(np.arange(1, size), NONE)
    return unused


def _set_margins(clock: np.recarray, scenario: Scenario, workload: Workload) -> None:
    """The most events and flows that one event can add.

    At the end of a step every request of a replica may end, which sends the turns that wait for
    it, begins a session, sends a part of its KV and lets the next one ask the decode pool; others
    may be swapped out, or admitted, each with one flow from every tier. A rank begins to write to
    each tier at most once.
    """
    ranks = sum(pool.replicas * pool.ranks for pool in scenario.pools)
    seats = max(pool.ranks * pool.seats for pool in scenario.pools)
    waiting = workload.parent[workload.parent != NONE]
    turns = int(np.bincount(waiting).max(initial=0)) if len(waiting) else 0
    clock.event_margin = seats * (turns + 6) + 64
    clock.flow_margin = seats * 10 + ranks * LEVELS + 64


def _first_events(clock: np.recarray, sessions: int) -> np.recarray:
    """Room for events, with those that begin the first sessions of a closed loop."""
    events = np.recarray(sessions + 2 * int(clock.event_margin[0]), EVENT)
    for serial in range(1, sessions + 1):
        events[serial - 1] = (0.0, SEND, serial, NONE, 0)
    clock.events = clock.serial = sessions
    return events


def _cost_arrays(costs: list[StepCosts]) -> dict[str, Any]:
    """The pools' costs side by side, padded to the longest grid, most stages and most seats."""
    stages = max(cost.stages for cost in costs)
    columns = max(len(cost.grid) for cost in costs)
    seats = max(len(cost.graph_tokens) for cost in costs)
    arrays: dict[str, Any] = {
        "grid": np.zeros((len(costs), columns), np.int64),
        "token_s": np.zeros((len(costs), stages, columns)),
        "expert_s": np.zeros((len(costs), stages, columns)),
        "graph_tokens": np.zeros((len(costs), seats), np.int64),
        "coefficients": np.zeros((len(costs), stages, len(COEFFICIENTS))),
        "line_s": np.zeros((len(costs), columns)),
        "exchange_s": np.zeros((len(costs), columns)),
    }
    arrays["decode_table_s"] = _stacked([c.tables.decode_s if c.tables else None for c in costs])
    arrays["mixed_table_s"] = _stacked([_mixed(c.tables) for c in costs])
    arrays["prefill_table_s"] = _stacked([c.tables.prefill_s if c.tables else None for c in costs])
    for pool, cost in enumerate(costs):
        pad = columns - len(cost.grid)
        rise = np.arange(1, pad + 1)  # the grid goes on, its tables stay level
        arrays["grid"][pool] = np.concatenate([cost.grid, cost.grid[-1] + rise])
        for name in ("token_s", "expert_s"):
            table = np.pad(getattr(cost, name), ((0, 0), (0, pad)), mode="edge")
            arrays[name][pool, : cost.stages] = table
        if cost.split is not None:
            arrays["line_s"][pool] = np.pad(cost.split.line_s, (0, pad), mode="edge")
            arrays["exchange_s"][pool] = np.pad(cost.split.exchange_s, (0, pad), mode="edge")
        arrays["graph_tokens"][pool, : len(cost.graph_tokens)] = cost.graph_tokens
        for column, name in enumerate(COEFFICIENTS):
            arrays["coefficients"][pool, : cost.stages, column] = getattr(cost, name)
    return arrays


def _mixed(tables: AttentionTables | None) -> Floats | None:
    if tables is None:
        return None
    return tables.decode_s if tables.mixed_decode_s is None else tables.mixed_decode_s


def _stacked(tables: list[Floats | None]) -> Floats:
    """Tables side by side, padded with their last entries; zeros where there is none."""
    shapes = [(1, 1) if table is None else table.shape for table in tables]
    rows, columns = max(shape[0] for shape in shapes), max(shape[1] for shape in shapes)
    stacked = np.zeros((len(tables), rows, columns))
    for place, table in enumerate(tables):
        if table is not None:
            missing = ((0, rows - table.shape[0]), (0, columns - table.shape[1]))
            stacked[place] = np.pad(table, missing, mode="edge")
    return stacked


def _result(scenario: Scenario, state: State, load: OfferedLoad) -> SimulationResult:
    finish_s = state.requests["finished_s"]
    makespan_s = float(finish_s.max(initial=0.0))
    counts = state.gaps
    used = np.flatnonzero(counts)
    gaps = int(counts.sum())
    return SimulationResult(
        requests=_records(state, load),
        pools=tuple(
            _pool_record(setup, state, pool_id, makespan_s, scenario.block_tokens)
            for pool_id, setup in enumerate(scenario.pools)
        ),
        makespan_s=makespan_s,
        gap_middle_s=GAP_MIN_S * (GAP_MAX_S / GAP_MIN_S) ** ((used + 0.5) / GAP_BINS),
        gap_counts=counts[used],
        gap_mean_s=float(state.clock["gap_seconds"][0]) / gaps if gaps else float("nan"),
        handed_off_bytes=float(state.clock["handed_off_bytes"][0]),
        tier_bytes=_tier_bytes(state),
        closed_loop=bool(state.clock["closed_loop"][0]),
        hosts=_host_record(scenario, state),
    )


def _host_record(scenario: Scenario, state: State) -> HostRecord | None:
    if scenario.hosts is None:
        return None
    stations = state.stations
    whole_s = np.maximum(1, stations["cores"]) * float(state.clock["now_s"][0])
    front_end, tools = (stations["worked_s"] / np.maximum(whole_s, 1e-12)).tolist()
    hosts = scenario.hosts
    return HostRecord(hosts.front_end_cores, front_end, hosts.tool_cores, tools)


def _records(state: State, load: OfferedLoad) -> RequestRecords:
    requests = state.requests
    sent = requests["phase"] != EXPECTED
    finished = requests["phase"] == FINISHED
    received = requests["decode_admitted_s"] >= 0
    entry_rank = np.where(received, requests["source_rank"], requests["rank"])
    on_hosts = sent & (requests["tool_s"] > 0) & (state.stations["cores"][TOOL] > 0)

    def told(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        return np.where(finished, values, np.nan)

    first_token_s = requests["first_token_s"]
    # A place set aside before the prompt's end is not waited for.
    decode_admitted_s = np.maximum(requests["decode_admitted_s"], requests["prefilled_s"])
    return RequestRecords(
        finished=finished,
        sent=sent,
        turned_away=requests["phase"] == TURNED_AWAY,
        measured=sent & load.measured & (requests["arrival_s"] >= load.warm_up_s),
        arrival_s=requests["arrival_s"].copy(),
        first_token_s=told(first_token_s),
        finish_s=told(requests["finished_s"]),
        input_tokens=requests["input"].copy(),
        output_tokens=requests["output"].copy(),
        frontend_s=told(requests["entered_s"] - requests["arrival_s"]),
        queue_s=told(requests["admitted_s"] - requests["entered_s"]),
        fetch_s=told(requests["fetched_s"] - requests["admitted_s"]),
        prefill_s=told(requests["prefilled_s"] - requests["fetched_s"]),
        decode_wait_s=told(decode_admitted_s - requests["prefilled_s"]),
        transfer_s=told(first_token_s - decode_admitted_s),
        hbm_hit_tokens=requests["hbm_hit"].copy(),
        host_hit_tokens=requests["host_hit"].copy(),
        ssd_hit_tokens=requests["ssd_hit"].copy(),
        store_hit_tokens=requests["store_hit"].copy(),
        preemptions=requests["preemptions"].copy(),
        decode_steps=requests["decode_steps"].copy(),
        entry_pool=np.where(sent, _pools_of(state, entry_rank), NONE),
        decode_pool=np.where(received, _pools_of(state, requests["rank"]), NONE),
        tool_wait_s=np.where(on_hosts, requests["tool_wait_s"], np.nan),
    )


def _pools_of(state: State, ranks: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    found: npt.NDArray[np.int64] = state.ranks["pool"][ranks]
    return found


def _pool_record(
    setup: PoolSetup, state: State, pool_id: int, makespan_s: float, block_tokens: int
) -> PoolRecord:
    replicas = state.replicas[state.replicas["pool"] == pool_id]
    ranks = state.ranks[state.ranks["pool"] == pool_id]
    steps = int(replicas["steps"].sum())
    busy_s = float(replicas["busy_s"].sum())
    whole_s = makespan_s * setup.replicas
    return PoolRecord(
        role=setup.role,
        replicas=setup.replicas,
        utilization=busy_s / whole_s if whole_s else 0.0,
        steps=steps,
        mean_batch=float(replicas["request_steps"].sum()) / steps if steps else 0.0,
        prefill_tokens=int(replicas["prefill_tokens"].sum()),
        decode_tokens=int(replicas["decode_tokens"].sum()),
        decode_request_steps=int(replicas["decode_request_steps"].sum()),
        kv_capacity_tokens=setup.kv_blocks * block_tokens,
        peak_kv_fraction=float(ranks["peak_blocks"].max()) / max(1, setup.kv_blocks),
        bubble_fraction=_bubble_fraction(setup, replicas),
        batch_steps=tuple(np.trim_zeros(state.batches[pool_id], "b").tolist()),
        kv_short_fraction=int(replicas["kv_short_steps"].sum()) / steps if steps else 0.0,
        network_bytes=_moved_bytes(state, ranks["net_link"]),
        host_bytes=_moved_bytes(state, ranks["host_link"]),
        ssd_bytes=_moved_bytes(state, ranks["ssd_link"]),
        network_utilization=_link_utilization(state, ranks["net_link"], makespan_s),
        host_link_utilization=_link_utilization(state, ranks["host_link"], makespan_s),
        copied_bytes=_moved_bytes(state, ranks["copy_link"]),
        copy_utilization=_link_utilization(state, ranks["copy_link"], makespan_s),
        ssd_utilization=_link_utilization(state, ranks["ssd_link"], makespan_s),
        experts_utilization=float(replicas["experts_work_s"].sum()) / whole_s if whole_s else 0.0,
    )


def _bubble_fraction(setup: PoolSetup, replicas: np.recarray) -> float:
    """Share of busy time that servers waited: pipeline stages, or attention for experts."""
    servers = setup.costs.stages
    busy_s = servers * float(replicas["busy_s"].sum())
    if busy_s == 0 or (servers == 1 and setup.costs.split is None):
        return 0.0
    return max(0.0, 1.0 - float(replicas["work_s"].sum()) / busy_s)


def _tier_bytes(state: State) -> TierBytes:
    store_link = state.clock["store_link"]
    written = [float(state.writers["written_bytes"][n::LEVELS].sum()) for n in range(LEVELS)]
    return TierBytes(
        host=_moved_bytes(state, state.ranks["host_link"]) - written[0],
        ssd=_moved_bytes(state, state.ranks["ssd_link"]) - written[1],
        store=_moved_bytes(state, store_link) - written[2],
        written_to_host=written[0],
        written_to_ssd=written[1],
        written_to_store=written[2],
    )


def _link_utilization(state: State, links: npt.NDArray[np.int64], makespan_s: float) -> float:
    """Mean over links of what they moved over what they could have moved in the run."""
    if makespan_s <= 0:
        return 0.0
    able = state.links["bytes_per_s"][links] * makespan_s
    return float((state.links["moved_bytes"][links] / able).mean())


def _moved_bytes(state: State, links: npt.NDArray[np.int64]) -> float:
    return float(state.links["moved_bytes"][links].sum())
