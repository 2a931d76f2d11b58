"""Laws that hold in every run, whatever the deployment and the load."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from objectives.cost.step_costs import SplitDecode
from objectives.simulator import (
    PoolSetup,
    RequestRecords,
    Scenario,
    SimulationResult,
    simulate,
)
from objectives.workload.load import OfferedLoad
from objectives.workload.workload import Workload
from spaces.plan import Role
from tests.objectives.simulator.worlds import (
    World,
    constant_step,
    made_up_costs,
    workload_of,
    worlds,
)


def pool(**changes: object) -> PoolSetup:
    """A roomy aggregated pool of one replica."""
    plain = PoolSetup(
        role="aggregated",
        replicas=1,
        ranks=1,
        seats=16,
        step_tokens=512,
        alternating=False,
        kv_blocks=4000,
        request_blocks=0,
        costs=made_up_costs(),
        link_bytes_per_s=1e9,
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def chat(requests: int = 60, gap_s: float = 0.05, seed: int = 0) -> Workload:
    """Short prompts, medium answers, Poisson arrivals."""
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.exponential(gap_s, requests))
    return workload_of(arrivals, rng.integers(20, 300, requests), rng.integers(2, 120, requests))


def open_loop(scenario: Scenario, workload: Workload) -> SimulationResult:
    return simulate(scenario, workload, OfferedLoad(workload.arrival_s, 0))


def closed_loop(scenario: Scenario, workload: Workload, clients: int) -> SimulationResult:
    return simulate(scenario, workload, OfferedLoad(np.zeros(len(workload)), clients))


@given(worlds())
@settings(max_examples=120)
def test_every_request_is_finished_or_rejected_or_kept_back_by_the_horizon(world: World) -> None:
    scenario, workload, load = world
    records = simulate(*world).requests
    fits = np.array([can_fit(scenario, *pair) for pair in lengths(workload)])
    served = records.sent & fits & ~records.turned_away
    np.testing.assert_array_equal(records.finished, served)
    assert not (records.turned_away & ~(records.sent & fits)).any()
    assert scenario.max_queued is not None or not records.turned_away.any()
    ends_s = ends_of(scenario, records)
    for place in np.flatnonzero(~records.sent):
        parent = workload.parent[place]
        if parent >= 0:
            assert not records.sent[parent] or (
                ends_s[parent] + workload.gap_s[place] > load.horizon_s
                or load.system_idle_cap_s < np.inf  # which brings it nearer
            )
        elif load.concurrency == 0:
            assert load.arrival_s[place] > load.horizon_s
        else:
            ended_s = np.append(ends_s[records.sent], 0.0)
            assert ended_s.max() > load.horizon_s


def ends_of(scenario: Scenario, records: RequestRecords) -> np.ndarray:
    """When each request is over for its client: a full queue is met behind the front end."""
    refused_s = records.arrival_s + records.turned_away * scenario.frontend_s
    return np.where(records.finished, records.finish_s, refused_s)


def can_fit(scenario: Scenario, prompt: int, answer: int) -> bool:
    """Whether every pool has the blocks that a request needs there at its end."""
    for setup in scenario.pools:
        hands_over = setup.role in ("prefill", "midfill")
        tokens = prompt + (0 if hands_over else answer) + setup.costs.verified_tokens - 1
        if -(-tokens // scenario.block_tokens) + setup.request_blocks > setup.kv_blocks:
            return False
    return True


def lengths(workload: Workload) -> list[tuple[int, int]]:
    """Prompt and answer of each request."""
    pairs = zip(workload.input_tokens.tolist(), workload.output_tokens.tolist(), strict=True)
    return list(pairs)


@given(worlds())
@settings(max_examples=120)
def test_time_goes_on(world: World) -> None:
    scenario, workload, load = world
    result = simulate(*world)
    records, done = result.requests, result.requests.finished
    assert (records.first_token_s[done] > records.arrival_s[done]).all()
    assert (records.finish_s[done] >= records.first_token_s[done]).all()
    assert result.makespan_s == np.nanmax(np.append(records.finish_s, 0.0))
    roots = (workload.parent < 0) & records.sent
    if load.concurrency == 0:
        np.testing.assert_array_equal(records.arrival_s[roots], load.arrival_s[roots])
    turns = np.flatnonzero(records.sent & (workload.parent >= 0))
    parents = workload.parent[turns]
    ends_s = ends_of(scenario, records)[parents]
    waits_s = records.arrival_s[turns] - ends_s
    if load.system_idle_cap_s == np.inf:
        np.testing.assert_allclose(waits_s, workload.gap_s[turns], atol=1e-12)
    assert (waits_s >= 0).all()


@given(worlds())
@settings(max_examples=120)
def test_the_parts_of_ttft_sum_to_it_and_none_is_negative(world: World) -> None:
    records = simulate(*world).requests
    parts = (
        records.frontend_s,
        records.queue_s,
        records.fetch_s,
        records.prefill_s,
        records.decode_wait_s,
        records.transfer_s,
    )
    for part in parts:
        assert (part[records.finished] >= 0).all()
    np.testing.assert_allclose(sum(parts), records.ttft_s, rtol=1e-9)


@given(worlds())
@settings(max_examples=120)
def test_memory_is_never_overdrawn_and_tokens_are_conserved(world: World) -> None:
    result = simulate(*world)
    records = result.requests
    done = records.finished
    for told in result.pools:
        assert 0 <= told.peak_kv_fraction <= 1
        assert 0 <= told.utilization <= 1 + 1e-12
    decoded = sum(told.decode_tokens for told in result.pools)
    answered = int((records.output_tokens[done] - 1).sum())
    again = int(records.preemptions.sum())  # each recomputation gives one token by prefill
    assert answered - again <= decoded <= answered
    computed = sum(told.prefill_tokens for told in result.pools)
    hits = int(records.hit_tokens[done].sum())
    # Hits are those of the first admission; a preempted request may find more at its second.
    found_again = int(records.input_tokens[done & (records.preemptions > 0)].sum())
    assert computed >= int(records.input_tokens[done].sum()) - hits - found_again


def test_littles_law_closes_in_a_closed_loop() -> None:
    result = closed_loop(Scenario((pool(),)), chat(2000), clients=12)
    records = result.requests
    in_flight = float(records.e2e_s.sum()) / result.makespan_s
    assert in_flight == pytest.approx(12, rel=0.02)  # less only while the loop runs dry


def test_more_replicas_never_lower_the_makespan() -> None:
    spans = [
        open_loop(Scenario((pool(replicas=n),)), chat(300, gap_s=0.005)).makespan_s
        for n in (1, 2, 4, 8)
    ]
    assert spans == sorted(spans, reverse=True)


def test_a_faster_chip_is_faster_for_everyone_alone() -> None:
    slow, fast = (
        closed_loop(Scenario((pool(costs=made_up_costs(scale=scale)),)), chat(50), clients=1)
        for scale in (1.0, 0.5)
    )
    assert (fast.requests.e2e_s < slow.requests.e2e_s).all()


def test_a_faster_link_shortens_only_the_transfer() -> None:
    def run(bytes_per_s: float) -> SimulationResult:
        pools = tuple(pool(role=role, link_bytes_per_s=bytes_per_s) for role in SPLIT)
        scenario = Scenario(pools, kv_on_link=replace(Scenario(pools).kv_on_link, token_bytes=1e6))
        return closed_loop(scenario, chat(20), clients=1)

    slow, fast = run(1e9), run(1e10)
    np.testing.assert_allclose(slow.requests.transfer_s, 10 * fast.requests.transfer_s, rtol=1e-6)
    np.testing.assert_allclose(slow.requests.prefill_s, fast.requests.prefill_s, rtol=1e-9)


SPLIT: tuple[Role, ...] = ("prefill", "decode")


def one_at_a_time(world: World, **changes: object) -> World:
    """The same prompts, each sent when the one before it has ended."""
    scenario, workload, _ = world
    count = len(workload)
    alone = replace(
        workload,
        session=np.arange(count, dtype=np.int32),
        parent=np.full(count, -1, np.int32),
        gap_s=np.zeros(count),
    )
    return replace(scenario, **changes), alone, OfferedLoad(np.zeros(count), 1)  # type: ignore[arg-type]


def faster_links(scenario: Scenario, factor: float) -> Scenario:
    """A deployment all of whose links carry so many times as much."""
    pools = tuple(
        replace(
            setup,
            link_bytes_per_s=setup.link_bytes_per_s * factor,
            host_s_per_token=setup.host_s_per_token / factor,
            ssd_s_per_token=setup.ssd_s_per_token / factor,
        )
        for setup in scenario.pools
    )
    store = scenario.store
    if store is not None:
        store = replace(store, bytes_per_s=store.bytes_per_s * factor)
    return replace(scenario, pools=pools, store=store)


@given(worlds(), st.sampled_from([1.5, 10.0, 1e6]))
@settings(max_examples=120)
def test_more_bandwidth_never_makes_a_fixed_schedule_slower(world: World, factor: float) -> None:
    """Prompts one after another; those that find something else have another schedule.

    What caches forget in time is left out. A block that is written sooner is found sooner, and to
    fetch it may take longer than to compute it.
    """
    scenario, workload, load = one_at_a_time(world, idle_limit_s=np.inf)
    slow = simulate(scenario, workload, load).requests
    fast = simulate(faster_links(scenario, factor), workload, load).requests
    alike = slow.finished.copy()
    for tier in ("hbm", "host", "ssd", "store"):
        hits = f"{tier}_hit_tokens"
        alike &= getattr(fast, hits) == getattr(slow, hits)
    assert (fast.e2e_s[alike] <= slow.e2e_s[alike] * (1 + 1e-9)).all()


@given(worlds(topologies=(("aggregated",),)))
@settings(max_examples=100)
def test_a_split_without_transfer_serves_a_lone_client_as_one_pool_does(world: World) -> None:
    scenario, workload, load = one_at_a_time(world, prefix_caching=False, acceptance=())
    setup = scenario.pools[0]
    costs = replace(setup.costs, verified_tokens=1)
    setup = replace(setup, costs=costs, link_bytes_per_s=np.inf, copy_s_per_byte=0.0)
    link = replace(scenario.kv_on_link, latency_s=0.0)
    split = tuple(replace(setup, role=role) for role in SPLIT)
    apart, together = (
        simulate(replace(scenario, pools=pools, kv_on_link=link), workload, load).requests
        for pools in (split, (setup,))
    )
    np.testing.assert_allclose(apart.finish_s, together.finish_s, rtol=1e-9)


@given(worlds(topologies=(SPLIT,)))
@settings(max_examples=100)
def test_a_midfill_pool_that_no_turn_is_sent_to_changes_nothing(world: World) -> None:
    scenario, workload, load = world
    first, last = scenario.pools
    idle = replace(first, role="midfill", kv_blocks=10_000)
    three = replace(scenario, pools=(first, idle, last), midfill_tokens=-(10**9))
    two, with_it = (simulate(each, workload, load).requests for each in (scenario, three))
    np.testing.assert_array_equal(with_it.finish_s, two.finish_s)


@given(worlds(topologies=(("aggregated",), SPLIT)))
@settings(max_examples=100)
def test_experts_apart_at_no_distance_are_experts_in_the_pool(world: World) -> None:
    """One micro-batch goes through attention and experts in turn, and nothing lies between."""
    scenario, workload, load = world
    *others, last = scenario.pools
    together = replace(last, costs=replace(last.costs, split=None))
    grid = last.costs.grid
    nothing = SplitDecode(1, 1, np.zeros(len(grid)), np.zeros(len(grid)))
    if last.costs.stages == 1:
        apart = replace(last, costs=replace(last.costs, split=nothing))
        found = [
            simulate(replace(scenario, pools=(*others, setup)), workload, load).requests
            for setup in (apart, together)
        ]
        np.testing.assert_allclose(found[0].finish_s, found[1].finish_s, rtol=1e-9)


def test_a_full_decode_pool_holds_the_prefill_pool_back() -> None:
    pools = (pool(role="prefill", kv_blocks=60), pool(role="decode", seats=1))
    result = closed_loop(Scenario(pools), chat(40), clients=20)
    waits = result.requests
    assert waits.finished.all()
    assert np.median(waits.decode_wait_s) > np.median(waits.prefill_s)
    assert waits.queue_s.max() > waits.prefill_s.max()  # blocks kept by what waits for decode
    assert result.pools[0].peak_kv_fraction <= 1


def test_a_request_that_can_never_fit_is_rejected_and_the_loop_goes_on() -> None:
    workload = workload_of([0.0] * 5, [10, 10, 5000, 10, 10], [5] * 5)
    result = closed_loop(Scenario((pool(kv_blocks=100),)), workload, clients=2)
    assert result.requests.finished.tolist() == [True, True, False, True, True]


def test_a_cached_prefix_shortens_ttft_and_a_slow_host_tier_lengthens_it() -> None:
    chains = [[0, 1, 2, 3, 10 + i] for i in range(6)] + [[90 + i] for i in range(40)]
    chains.append([0, 1, 2, 3, 8])
    ids = {b: n for n, b in enumerate(dict.fromkeys(b for chain in chains for b in chain))}
    dense = [[ids[b] for b in chain] for chain in chains]
    inputs = [len(chain) * 64 for chain in chains]
    workload = workload_of([0.0] * len(inputs), inputs, [4] * len(inputs), dense, block_tokens=64)

    def last_ttft_s(**changes: object) -> float:
        caching = bool(changes.pop("caching", True))
        scenario = Scenario((pool(kv_blocks=80, **changes),), prefix_caching=caching)
        return float(closed_loop(scenario, workload, clients=1).requests.ttft_s[-1])

    without = last_ttft_s()  # by then evicted
    assert last_ttft_s(caching=False) == pytest.approx(without)
    fast = last_ttft_s(host_tokens=100_000, host_s_per_token=1e-7)
    slow = last_ttft_s(host_tokens=100_000, host_s_per_token=1e-4)
    assert fast < without < slow


def beside_a_long_answer(ranks: int, arrivals_s: list[float], **changes: object) -> np.ndarray:
    """Waits of short requests on ranks that each decode a long answer, in steps of 10 ms."""
    setup = pool(ranks=ranks, costs=constant_step(0.01, 16), **changes)
    long, short = [5000] * ranks, [1] * len(arrivals_s)
    count = ranks + len(arrivals_s)
    workload = workload_of([0.0] * ranks + arrivals_s, [5] * count, long + short)
    records = open_loop(Scenario((setup,), router="round-robin"), workload).requests
    return np.asarray(records.queue_s[ranks:])


def test_an_engine_that_polls_makes_requests_wait_half_its_interval_on_average() -> None:
    arrivals_s = np.sort(np.random.default_rng(0).uniform(0.5, 40.0, 60)).tolist()
    waits_s = beside_a_long_answer(1, arrivals_s, admission_steps=30)
    assert waits_s.max() <= 0.3 + 1e-9
    assert waits_s.mean() == pytest.approx(0.15, rel=0.25)
    assert beside_a_long_answer(1, arrivals_s).max() <= 0.01 + 1e-9


def test_ranks_that_wait_for_one_another_begin_together() -> None:
    together = {"admission_steps": 1000, "admission_together": True}
    alone, pair = [1.0], [1.0, 1.5]
    assert beside_a_long_answer(2, alone, **together)[0] > 5
    np.testing.assert_allclose(beside_a_long_answer(2, pair, **together), [0.5, 0.0], atol=0.0101)


def test_every_router_spreads_requests_in_its_own_way() -> None:
    rng = np.random.default_rng(3)
    chains = [[int(rng.integers(0, 3))] for _ in range(120)]
    workload = workload_of(
        np.cumsum(rng.exponential(0.01, 120)),
        [64] * 120,
        rng.integers(2, 80, 120),
        chains,
        block_tokens=64,
    )
    runs = {
        router: open_loop(Scenario((pool(replicas=3),), router=router), workload)
        for router in ("round-robin", "least-loaded", "prefix-affinity")
    }
    assert len({run.requests.finish_s.tobytes() for run in runs.values()}) == 3
    hits = {router: run.requests.hbm_hit_tokens.sum() for router, run in runs.items()}
    assert hits["prefix-affinity"] > max(hits["round-robin"], hits["least-loaded"])


def two_turns(gap_s: float = 0.0, keep: bool = True) -> SimulationResult:
    """A prompt of four blocks, an answer of two, and a second turn that adds one block."""
    first = [0, 1, 2, 3]
    second = [*first, 4, 5, 6]
    workload = workload_of(
        [0.0, 0.0], [256, 448], [129, 4], [first, second], 64, parents=[-1, 0], gaps_s=[0.0, gap_s]
    )
    scenario = Scenario((pool(kv_blocks=400),), keep_answers=keep)
    return simulate(scenario, workload, OfferedLoad(np.zeros(2), 1))


def test_a_turn_comes_its_pause_after_the_end_of_the_one_before() -> None:
    records = two_turns(gap_s=0.5).requests
    assert records.arrival_s[1] == pytest.approx(records.finish_s[0] + 0.5, rel=1e-12)


def test_the_next_turn_finds_the_answer_in_the_cache_if_it_is_kept() -> None:
    assert two_turns(keep=True).requests.hbm_hit_tokens[1] == 6 * 64
    assert two_turns(keep=False).requests.hbm_hit_tokens[1] == 4 * 64


def test_a_closed_loop_keeps_sessions_alive_and_pauses_count_as_alive() -> None:
    turns = 40
    parents = [-1 if turn % 4 == 0 else turn - 1 for turn in range(turns)]
    gaps_s = [0.0 if parent < 0 else 0.2 for parent in parents]
    workload = workload_of(
        [0.0] * turns, [50] * turns, [10] * turns, parents=parents, gaps_s=gaps_s
    )
    load = OfferedLoad(np.zeros(turns), 3)
    records = simulate(Scenario((pool(),)), workload, load).requests
    starts = np.sort(records.arrival_s[::4])
    ends = np.sort(records.finish_s[3::4])
    np.testing.assert_allclose(starts[3:], ends[:-3], rtol=1e-12)
    assert (starts[:3] == 0).all()
