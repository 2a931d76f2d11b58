"""Small made-up worlds for the simulator's tests: costs, scenarios and workloads by the dozen."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from objectives.cost.step_costs import SplitDecode, StepCosts
from objectives.simulator.scenario import KvOnLink, PoolSetup, Scenario, SharedStore
from objectives.workload.load import OfferedLoad
from objectives.workload.workload import Workload


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


def random_world(seed: int) -> tuple[Scenario, Workload, OfferedLoad]:
    """A scenario, workload and load with any mix of features, tight enough to make them meet."""
    rng = np.random.default_rng(seed)
    topology = int(rng.choice([1, 1, 2, 3]))
    window = int(rng.choice([0, 0, 24]))
    sharing = bool(rng.random() < 0.6)
    requests = int(rng.integers(1, 28))
    workload = _random_workload(rng, requests, sharing)
    longest = int((workload.input_tokens + workload.output_tokens).max())
    roles = (("aggregated",), ("prefill", "decode"), ("prefill", "midfill", "decode"))[
        topology - 1
    ]
    acceptance = ((), (), (0.8,), (0.7, 0.5, 0.1))[int(rng.integers(4))]
    drafts = len(acceptance)
    pools = tuple(_random_pool(rng, role, window, longest, drafts) for role in roles)
    scenario = Scenario(
        pools,
        block_tokens=4,
        prefix_caching=bool(rng.random() < 0.9),
        router=rng.choice(["round-robin", "least-loaded", "shortest-queue", "prefix-affinity"]),
        kv_on_link=KvOnLink(1e6, 2e5, window, 3e5, float(rng.choice([0.0, 1e-3]))),
        frontend_s=float(rng.choice([0.0, 0.0, 4e-3])),
        keep_answers=bool(rng.random() < 0.8),
        retention=rng.choice(["lru", "lru", "write-through", "offload-at-turn-end"]),
        idle_limit_s=float(rng.choice([np.inf, np.inf, 0.05])),
        store=SharedStore(int(rng.choice([50, 500])), 2e9) if rng.random() < 0.5 else None,
        midfill_tokens=int(rng.integers(1, 60)),
        fetch_when_faster=bool(rng.random() < 0.3),
        layers=int(rng.choice([1, 1, 4])),
        acceptance=acceptance,
        seed=seed,
    )
    load = _random_load(rng, workload)
    polling = tuple(
        replace(
            pool,
            admission_steps=int(rng.choice([1, 1, 3, 10])),
            admission_together=bool(rng.random() < 0.5),
        )
        for pool in pools
    )
    return replace(scenario, pools=polling), workload, load


def _random_load(rng: np.random.Generator, workload: Workload) -> OfferedLoad:
    """A closed loop or an open one, perhaps cut off, perhaps with idle time skipped."""
    horizon_s = float(rng.choice([np.inf, np.inf, 0.3]))
    if rng.random() < 0.4:
        return OfferedLoad(workload.arrival_s, 0, horizon_s=horizon_s)
    cap_s = float(rng.choice([np.inf, 0.01]))
    sessions = int(rng.integers(1, 12))
    nothing = np.zeros(len(workload))
    return OfferedLoad(nothing, sessions, horizon_s=horizon_s, system_idle_cap_s=cap_s)


def _random_pool(
    rng: np.random.Generator, role: str, window: int, longest: int, drafts: int
) -> PoolSetup:
    seats = int(rng.integers(1, 9))
    verified = 1 + drafts if role in ("aggregated", "decode") else 1
    tight = int(rng.integers(longest // 4 + 1, longest + 8))
    host_tokens = int(rng.choice([0, 64, 400]))
    return PoolSetup(
        role=role,  # type: ignore[arg-type]
        replicas=int(rng.integers(1, 4)),
        ranks=int(rng.choice([1, 1, 2, 3])),
        seats=seats,
        step_tokens=int(rng.integers(seats * verified, 60)),
        alternating=bool(rng.random() < 0.3),
        kv_blocks=tight,
        request_blocks=int(rng.choice([0, 0, 2])),
        costs=_random_costs(rng, window, verified),
        host_tokens=host_tokens,
        host_s_per_token=float(rng.choice([1e-5, 1e-3])),
        ssd_tokens=int(rng.choice([0, 0, 200])),
        ssd_s_per_token=3e-4,
        swap_tokens=int(rng.choice([0, 0, 40, 400])),
        watermark_blocks=int(rng.choice([0, 0, 3])),
        flight_requests=2 if rng.random() < 0.3 else None,
        link_bytes_per_s=float(rng.choice([1e9, 1e10])),
    )


def _random_costs(rng: np.random.Generator, window: int, verified: int) -> StepCosts:
    stages = int(rng.choice([1, 1, 2, 3]))
    splits = stages == 1 and rng.random() < 0.4
    return made_up_costs(
        stages,
        window,
        float(rng.uniform(0.5, 2)),
        verified=verified,
        micro_batches=int(rng.integers(1, 4)) if splits else 0,
        context=float(rng.choice([1.0, 300.0])),
    )


def _random_workload(rng: np.random.Generator, requests: int, sharing: bool) -> Workload:
    inputs = rng.integers(1, 80, requests)
    outputs = rng.integers(1, 40, requests)
    arrivals = np.cumsum(rng.exponential(float(rng.choice([0.005, 0.05])), requests))
    if rng.random() < 0.3:
        arrivals = np.round(arrivals, 2)  # several requests at the same moment
    parents = _random_parents(rng, requests) if rng.random() < 0.4 else [-1] * requests
    gaps_s = rng.exponential(0.02, requests).round(3).tolist()
    if not sharing:
        return workload_of(arrivals, inputs, outputs, parents=parents, gaps_s=gaps_s)
    block = int(rng.choice([8, 16]))
    families = rng.integers(0, 4, requests)
    chains: list[list[int]] = []
    for i in range(requests):
        length = -(-int(inputs[i]) // block)
        common = int(rng.integers(0, length + 1))
        first = [int(families[i]) * 100 + p for p in range(common)]
        if parents[i] >= 0:  # a turn mostly goes on with the prompt before it
            first = chains[parents[i]][: length if rng.random() < 0.8 else common]
        chains.append(first + [1000 + i * 100 + p for p in range(len(first), length)])
    ids = {block_id: n for n, block_id in enumerate(dict.fromkeys(b for c in chains for b in c))}
    dense = [[ids[b] for b in chain] for chain in chains]
    return workload_of(arrivals, inputs, outputs, dense, block, parents, gaps_s)


def _random_parents(rng: np.random.Generator, requests: int) -> list[int]:
    """Chains and forks of turns; a turn waits for an earlier one or for none."""
    return [
        int(rng.integers(max(0, i - 4), i)) if i and rng.random() < 0.6 else -1
        for i in range(requests)
    ]
