"""Small made-up worlds for the simulator's tests: costs, scenarios and workloads by the dozen."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, TypeVar, get_args

import numpy as np
from hypothesis import strategies as st

from objectives.cost.step_costs import SplitDecode, StepCosts
from objectives.simulator.scenario import HostSetup, KvOnLink, PoolSetup, Scenario, SharedStore
from objectives.workload.load import OfferedLoad
from objectives.workload.workload import APPEND, FIRST, Workload
from spaces.plan import Retention, Role, Router

World = tuple[Scenario, Workload, OfferedLoad]
WRITING: tuple[Retention, ...] = ("offload-at-turn-end", "write-through", "lru")
T = TypeVar("T")

TOPOLOGIES: tuple[tuple[Role, ...], ...] = (
    ("aggregated",),
    ("prefill", "decode"),
    ("prefill", "midfill", "decode"),
)


def made_up_costs(
    stages: int = 1,
    window: int = 0,
    scale: float = 1.0,
    seats: int = 64,
    verified: int = 1,
    micro_batches: int = 0,
    context: float = 1.0,
) -> StepCosts:
    """Costs with every term present; stages differ, so that a mix-up shows."""
    grid = np.array([0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096, 65536])
    share = scale * np.linspace(1.0, 1.5, stages)[:, None] / stages
    flat = share[:, 0]
    windowed = 1.0 if window else 0.0
    return StepCosts(
        grid=grid,
        token_s=share * (5e-3 + 4e-6 * grid),
        expert_s=share * (2e-3 * (1 - 0.97**grid) + 1e-6 * grid),
        graph_tokens=np.array([-(-n * verified // 4) * 4 for n in range(seats + 1)]),
        eager_s=1e-3 * flat,
        launch_s=9e-3 * flat,
        decode_base_s=3e-4 * flat,
        decode_request_s=2e-6 * flat,
        decode_token_s=3e-8 * context * flat,
        decode_window_token_s=2e-8 * flat * windowed,
        prefill_base_s=2e-4 * flat,
        chunk_token_s=3e-7 * flat,
        pair_s=1e-9 * flat,
        window_pair_s=5e-10 * flat * windowed,
        read_s=1e-7 * flat,
        window_tokens=window,
        host_s=3e-4,
        request_s=8e-6,
        verified_tokens=verified,
        split=made_up_split(grid, scale, micro_batches) if micro_batches else None,
    )


def made_up_split(grid: np.ndarray, scale: float, micro_batches: int) -> SplitDecode:
    """An exchange that is now hidden behind the sides, now longer than they are."""
    return SplitDecode(
        micro_batches=micro_batches,
        layers=5,
        line_s=scale * 2e-5 * grid,
        exchange_s=scale * (3e-3 + 4e-5 * grid),
    )


def constant_step(seconds: float, seats: int = 1) -> StepCosts:
    """Every step takes the same time, whatever is in it."""
    nothing = np.zeros(1)
    return StepCosts(
        grid=np.array([0, 1]),
        token_s=np.zeros((1, 2)),
        expert_s=np.zeros((1, 2)),
        graph_tokens=np.zeros(seats + 1, np.int64),
        eager_s=nothing,
        launch_s=nothing,
        decode_base_s=nothing,
        decode_request_s=nothing,
        decode_token_s=nothing,
        decode_window_token_s=nothing,
        prefill_base_s=nothing,
        chunk_token_s=nothing,
        pair_s=nothing,
        window_pair_s=nothing,
        read_s=nothing,
        window_tokens=0,
        host_s=seconds,
        request_s=0.0,
    )


def workload_of(
    arrival_s: list[float] | np.ndarray,
    input_tokens: list[int] | np.ndarray,
    output_tokens: list[int] | np.ndarray,
    chains: list[list[int]] | None = None,
    block_tokens: int = 0,
    parents: list[int] | None = None,
    gaps_s: list[float] | None = None,
) -> Workload:
    """A workload from lists; `chains` are prefix block ids of each request.

    `parents` are the requests whose end each one waits for (-1: none), `gaps_s` the pauses.
    """
    chains = chains or [[] for _ in arrival_s]
    return Workload(
        name="made up",
        arrival_s=np.asarray(arrival_s, np.float64),
        input_tokens=np.asarray(input_tokens, np.int64),
        output_tokens=np.asarray(output_tokens, np.int64),
        block_tokens=block_tokens,
        block_offsets=np.cumsum([0, *(len(chain) for chain in chains)]),
        block_ids=np.array([block for chain in chains for block in chain], np.int32),
        **(_turns(parents, gaps_s or [0.0] * len(parents)) if parents else {}),
    )


def _turns(parents: list[int], gaps_s: list[float]) -> dict[str, Any]:
    session: list[int] = []
    for parent in parents:
        session.append(session[parent] if parent >= 0 else max(session, default=-1) + 1)
    return {
        "session": np.array(session, np.int32),
        "parent": np.array(parents, np.int32),
        "gap_s": np.array(gaps_s),
    }


@st.composite
def worlds(
    draw: st.DrawFn,
    most_requests: int = 27,
    topologies: tuple[tuple[Role, ...], ...] = TOPOLOGIES,
) -> World:
    """A scenario, workload and load with any mix of features, tight enough to make them meet.

    Shrinks towards one request on one plain pool.
    """
    roles = draw(st.sampled_from(topologies))
    window = draw(st.sampled_from([0, 0, 24]))
    workload = draw(_workloads(most_requests))
    longest = int((workload.input_tokens + workload.output_tokens).max())
    acceptance = draw(st.sampled_from([(), (), (0.8,), (0.7, 0.5, 0.1)]))
    drafts = len(acceptance)
    pools = tuple(draw(_pools(role, window, longest, drafts)) for role in roles)
    scenario = Scenario(
        pools,
        block_tokens=4,
        prefix_caching=draw(_mostly(True, of=8)),
        router=draw(st.sampled_from(get_args(Router))),
        kv_on_link=KvOnLink(1e6, 2e5, window, 3e5, draw(st.sampled_from([0.0, 1e-3]))),
        frontend_s=draw(st.sampled_from([0.0, 0.0, 4e-3])),
        keep_answers=draw(_mostly(True, of=5)),
        retention=draw(st.sampled_from(["lru", "write-through", "offload-at-turn-end"])),
        idle_limit_s=draw(st.sampled_from([np.inf, np.inf, 0.05])),
        store=draw(st.sampled_from([None, SharedStore(50, 2e9), SharedStore(500, 2e9)])),
        midfill_tokens=draw(st.integers(1, 79)),
        fetch_when_faster=draw(_mostly(False)),
        layers=draw(st.sampled_from([1, 1, 4])),
        prefetch=draw(st.booleans()),
        max_queued=draw(st.sampled_from([None, None, 1, 3, 6])),
        try_others=draw(st.booleans()),
        send_layers=draw(st.sampled_from([0, 1, 6])),
        acceptance=acceptance,
        seed=draw(st.integers(0, 9)),
    )
    hosts, workload = draw(_hosts(workload))
    return replace(scenario, hosts=hosts), workload, draw(_loads(workload))


@st.composite
def crowded_worlds(draw: st.DrawFn, most_requests: int = 27) -> World:
    """Worlds with few seats and room below HBM, where prefixes are fetched for those who wait."""
    scenario, workload, load = draw(
        worlds(most_requests).filter(lambda world: world[1].block_tokens > 0)
    )
    setups = [
        replace(
            setup,
            seats=draw(st.integers(1, 2)),
            kv_blocks=setup.kv_blocks * draw(st.sampled_from([1, 2, 4])),
            host_tokens=draw(st.sampled_from([64, 400])),
            host_s_per_token=draw(st.sampled_from([1e-5, 1e-3])),
        )
        for setup in scenario.pools
    ]
    crowded = replace(
        scenario,
        pools=tuple(setups),
        prefix_caching=True,
        retention=draw(st.sampled_from(WRITING)),
        max_queued=None,
        prefetch=True,
    )
    return crowded, workload, load


@st.composite
def _hosts(draw: st.DrawFn, workload: Workload) -> tuple[HostSetup | None, Workload]:
    """Cores for the front end and for tools between turns, often too few; mostly none planned."""
    if draw(_mostly(True)):
        return None, workload
    hosts = HostSetup(
        front_end_cores=draw(st.integers(1, 3)),
        tool_cores=draw(st.integers(0, 3)),
        request_s=draw(st.sampled_from([0.0, 2e-3])),
        token_s=1e-5,
    )
    by_tool = draw(st.lists(st.booleans(), min_size=len(workload), max_size=len(workload)))
    kind = np.where((workload.parent >= 0) & by_tool, APPEND, FIRST).astype(np.int8)
    share = draw(st.sampled_from([0.0, 0.5, 1.0]))
    return hosts, replace(workload, kind=kind, tool_share=share)


def _mostly(usual: bool, of: int = 3) -> st.SearchStrategy[bool]:
    """Usually so, but once in `of` times."""
    return st.sampled_from([usual] * (of - 1) + [not usual])


@st.composite
def _loads(draw: st.DrawFn, workload: Workload) -> OfferedLoad:
    """A closed loop or an open one, perhaps cut off, perhaps with idle time skipped."""
    horizon_s = draw(st.sampled_from([np.inf, np.inf, 0.3]))
    if draw(st.booleans()):
        return OfferedLoad(workload.arrival_s, 0, horizon_s=horizon_s)
    cap_s = draw(st.sampled_from([np.inf, 0.01]))
    sessions = draw(st.integers(1, 11))
    nothing = np.zeros(len(workload))
    return OfferedLoad(nothing, sessions, horizon_s=horizon_s, system_idle_cap_s=cap_s)


@st.composite
def _pools(draw: st.DrawFn, role: Role, window: int, longest: int, drafts: int) -> PoolSetup:
    seats = draw(st.integers(1, 8))
    verified = 1 + drafts if role in ("aggregated", "decode") else 1
    least_blocks = longest // 4 + 1
    spare_blocks = draw(st.sampled_from([longest, longest // 4]))
    return PoolSetup(
        role=role,
        replicas=draw(st.integers(1, 3)),
        ranks=draw(st.sampled_from([1, 1, 2, 3])),
        seats=seats,
        step_tokens=draw(st.integers(seats * verified, 59)),
        alternating=draw(_mostly(False)),
        kv_blocks=least_blocks + draw(st.integers(0, spare_blocks)),
        request_blocks=draw(st.sampled_from([0, 0, 2])),
        costs=draw(_costs(window, verified)),
        host_tokens=draw(st.sampled_from([0, 64, 400])),
        host_s_per_token=draw(st.sampled_from([1e-5, 1e-3])),
        ssd_tokens=draw(st.sampled_from([0, 200])),
        ssd_s_per_token=3e-4,
        swap_tokens=draw(st.sampled_from([0, 0, 40, 400])),
        watermark_blocks=draw(st.sampled_from([0, 0, 3])),
        flight_requests=draw(st.sampled_from([None, None, 2])),
        link_bytes_per_s=draw(st.sampled_from([1e9, 1e10])),
        admission_steps=draw(st.sampled_from([1, 1, 3, 10])),
        admission_together=draw(st.booleans()),
        copy_s_per_byte=draw(st.sampled_from([0.0, 0.0, 1e-9])),
        stores_answers=draw(_mostly(True)),
    )


@st.composite
def _costs(draw: st.DrawFn, window: int, verified: int) -> StepCosts:
    stages = draw(st.sampled_from([1, 1, 1, 2, 3]))
    splits = stages == 1 and draw(st.booleans())
    return made_up_costs(
        stages,
        window,
        0.5 + 1.5 * draw(_odd_shares()),
        verified=verified,
        micro_batches=draw(st.integers(1, 3)) if splits else 0,
        context=draw(st.sampled_from([1.0, 300.0])),
    )


def _odd_shares() -> st.SearchStrategy[float]:
    """Numbers below 1 without a common measure, so that no two clocks tick together by chance."""
    return st.integers(0, 9999).map(lambda count: (count * (math.sqrt(5) - 1) / 2 + 0.1) % 1.0)


@st.composite
def _workloads(draw: st.DrawFn, most_requests: int) -> Workload:
    """Requests at odd or at even times, each maybe a turn after another, maybe with a prefix."""
    requests = draw(st.integers(1, most_requests))

    def each(values: st.SearchStrategy[T]) -> list[T]:
        return draw(st.lists(values, min_size=requests, max_size=requests))

    inputs, outputs = each(st.integers(1, 79)), each(st.integers(1, 39))
    mean_s = draw(st.sampled_from([0.005, 0.05]))
    arrivals = np.cumsum(each(_odd_shares())) * 2 * mean_s
    if draw(_mostly(False)):
        arrivals = np.round(arrivals, 2)  # several requests at the same moment
    parents, gaps_s = [-1] * requests, [0.0] * requests
    if draw(st.booleans()):
        parents = _parents(each(st.integers(-2, 4)))
        gaps_s = np.round(0.04 * np.array(each(_odd_shares())), 3).tolist()
    if draw(_mostly(False, of=5)):
        return workload_of(arrivals, inputs, outputs, parents=parents, gaps_s=gaps_s)
    block = draw(st.sampled_from([8, 16]))
    lengths = [-(-tokens // block) for tokens in inputs]
    chains = _chains(lengths, each(st.integers(0, 10)), each(st.integers(0, 3)), parents)
    return workload_of(arrivals, inputs, outputs, chains, block, parents, gaps_s)


def _parents(back: list[int]) -> list[int]:
    """Chains and forks of turns: one goes so many requests back, or waits for none."""
    return [max(0, place - step) if place and step > 0 else -1 for place, step in enumerate(back)]


def _chains(
    lengths: list[int], common: list[int], families: list[int], parents: list[int]
) -> list[list[int]]:
    """Prefix blocks: so many of a family's, or most often those of the turn before; then own ones.

    Block ids are dense.
    """
    chains: list[list[tuple[int, int]]] = []
    for place, length in enumerate(lengths):
        first = [(families[place], position) for position in range(min(common[place], length))]
        if parents[place] >= 0:
            goes_on = families[place] > 0
            first = chains[parents[place]][: length if goes_on else min(common[place], length)]
        own = [(4 + place, position) for position in range(len(first), length)]
        chains.append(first + own)
    ids = {block: n for n, block in enumerate(dict.fromkeys(b for c in chains for b in c))}
    return [[ids[block] for block in chain] for chain in chains]
