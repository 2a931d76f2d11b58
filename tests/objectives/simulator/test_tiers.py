"""KV tiers below HBM: what fetching costs, when it pays, and how much moves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from objectives.simulator import (
    KvOnLink,
    PoolSetup,
    Scenario,
    SharedStore,
    SimulationResult,
    simulate,
)
from objectives.simulator.records import RequestRecords
from objectives.workload.load import OfferedLoad
from objectives.workload.workload import Workload
from tests.objectives.simulator.worlds import made_up_costs, workload_of

BLOCK = 64
TOKEN_BYTES = 1e5


def pool(**changes: object) -> PoolSetup:
    """A pool whose HBM holds one long prompt."""
    plain = PoolSetup(
        role="aggregated",
        replicas=1,
        ranks=1,
        seats=8,
        step_tokens=512,
        alternating=False,
        kv_blocks=80,
        request_blocks=0,
        costs=made_up_costs(),
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def prompts_come_back(rounds: int = 3, prompts: int = 4, at_once: int = 1) -> Workload:
    """Prompts of sixteen blocks, each sent again after the others.

    So many come together, and then none until all that is written is there.
    """
    chains = [list(range(16 * n, 16 * n + 16)) for _ in range(rounds) for n in range(prompts)]
    count = len(chains)
    arrivals_s = 10.0 * (np.arange(count) // at_once)
    return workload_of(arrivals_s, [16 * BLOCK] * count, [4] * count, chains, BLOCK)


def served(scenario: Scenario, at_once: int = 1) -> SimulationResult:
    workload = prompts_come_back(at_once=at_once)
    return simulate(scenario, workload, OfferedLoad(workload.arrival_s, 0))


def world(s_per_token: float, **changes: object) -> Scenario:
    """A host tier that holds everything, so many seconds a token away."""
    host = pool(host_tokens=100_000, host_s_per_token=s_per_token)
    return Scenario((host,), kv_on_link=KvOnLink(TOKEN_BYTES), **changes)  # type: ignore[arg-type]


def last_ttft_s(scenario: Scenario) -> float:
    return float(served(scenario).requests.ttft_s[-1])


@given(st.floats(1e-8, 1e-3))
@settings(max_examples=30, deadline=None)
def test_a_lone_prompt_takes_the_faster_of_fetching_and_computing(s_per_token: float) -> None:
    always = last_ttft_s(world(s_per_token))
    never = last_ttft_s(Scenario((pool(),), kv_on_link=KvOnLink(TOKEN_BYTES)))
    chosen = last_ttft_s(world(s_per_token, fetch_when_faster=True))
    assert chosen == pytest.approx(min(always, never), rel=1e-9)


@given(st.floats(1e-8, 1e-3), st.integers(2, 80))
@settings(max_examples=30, deadline=None)
def test_layers_overlap_fetching_with_computing(s_per_token: float, layers: int) -> None:
    whole = served(world(s_per_token)).requests
    layered = served(world(s_per_token, layers=layers)).requests
    fetch_s, compute_s = float(whole.fetch_s[-1]), float(whole.prefill_s[-1])
    assert fetch_s > 0
    # The first layer is waited for; then both go on side by side.
    expected_s = max(fetch_s, fetch_s / layers + compute_s)
    assert float(layered.ttft_s[-1]) == pytest.approx(expected_s, rel=1e-9)
    assert float(layered.fetch_s[-1]) == pytest.approx(fetch_s / layers, rel=1e-9)


def test_a_held_prompt_leaves_the_steps_to_others() -> None:
    """Its neighbours decode while the last layers of its prefix are on their way."""
    slow = served(world(1e-3, layers=16), at_once=2).requests
    whole = served(world(1e-3), at_once=2).requests
    assert slow.finished.all()
    assert slow.ttft_s.sum() < whole.ttft_s.sum()


def test_a_prefix_on_its_way_is_waited_for_by_all_who_share_it() -> None:
    """To its last layer, and it moves once: the second request comes 1 ms into a fetch."""
    prompt, other = list(range(16)), list(range(16, 32))
    chains = [prompt, other, prompt, prompt]
    arrivals_s = np.array([0.0, 10.0, 20.0, 20.001])
    workload = workload_of(arrivals_s, [16 * BLOCK] * 4, [4] * 4, chains, BLOCK)
    load = OfferedLoad(arrivals_s, 0)
    whole, layered = (simulate(world(1e-3, layers=layers), workload, load) for layers in (1, 16))
    first_s, second_s = whole.requests.fetch_s[2:]
    assert second_s == pytest.approx(first_s - 0.001)
    assert layered.requests.fetch_s[2] < second_s / 2
    assert layered.requests.fetch_s[3] == pytest.approx(second_s)
    fetched = whole.requests.host_hit_tokens[2]  # the others were still in HBM
    assert whole.tier_bytes.host == layered.tier_bytes.host == fetched * TOKEN_BYTES


@pytest.mark.parametrize("tier", ["host", "ssd", "store"])
def test_bytes_of_a_tier_are_those_of_its_hits(tier: str) -> None:
    scenarios = {
        "host": world(1e-6),
        "ssd": Scenario(
            (pool(ssd_tokens=100_000, ssd_s_per_token=1e-6),), kv_on_link=KvOnLink(TOKEN_BYTES)
        ),
        "store": Scenario(
            (pool(link_bytes_per_s=1e11),),
            kv_on_link=KvOnLink(TOKEN_BYTES),
            store=SharedStore(100_000, 1e11),
        ),
    }
    result = served(scenarios[tier])
    hits = getattr(result.requests, f"{tier}_hit_tokens")
    # A prompt found whole gives its last token up, which was fetched nevertheless.
    fetched = (hits > 0) * 16 * BLOCK
    assert hits.sum() > 0
    moved = getattr(result.tier_bytes, tier)
    assert moved == pytest.approx(fetched.sum() * TOKEN_BYTES, rel=1e-12)
    others = {"host", "ssd", "store"} - {tier}
    assert all(getattr(result.tier_bytes, other) == 0 for other in others)
    written = result.tier_bytes.written_to_store
    assert (written > 0) == (tier == "store")


def test_disks_take_what_host_memory_gives_up() -> None:
    near = pool(host_tokens=20 * BLOCK, host_s_per_token=1e-6)
    both = replace(near, ssd_tokens=100_000, ssd_s_per_token=1e-5)
    alone, behind = (
        served(Scenario((setup,), kv_on_link=KvOnLink(TOKEN_BYTES))).requests
        for setup in (near, both)
    )
    assert behind.ssd_hit_tokens.sum() > 0
    assert total_hits(behind) > total_hits(alone)


def total_hits(records: RequestRecords) -> int:
    return int(records.hit_tokens.sum())


def two_stages(clients: int) -> SimulationResult:
    """A pipeline of two stages under a closed loop of plain requests."""
    costs = made_up_costs(stages=2)
    setup = pool(costs=costs, kv_blocks=10_000, seats=64)
    count = 40 * clients
    workload = workload_of(np.zeros(count), [50] * count, [60] * count)
    return simulate(Scenario((setup,)), workload, OfferedLoad(np.zeros(count), clients))


def test_a_pipeline_has_bubbles_while_requests_are_few() -> None:
    few, many = (two_stages(clients).pools[0].bubble_fraction for clients in (1, 16))
    assert few == pytest.approx(0.5, abs=1e-9)  # one request is in one of two stages
    assert many < 0.25  # what is left is the difference of the stages
    single = simulate(
        Scenario((pool(),)), workload_of([0.0], [50], [60]), OfferedLoad(np.zeros(1), 1)
    )
    assert single.pools[0].bubble_fraction == 0.0


def test_a_long_prompt_in_a_pipeline_holds_its_neighbours_up() -> None:
    """Each of its chunks occupies a stage for long, and what follows it waits."""
    setup = pool(costs=made_up_costs(stages=2), kv_blocks=50_000, seats=8, step_tokens=4096)

    def slowest_tpot_s(prompt: int) -> float:
        workload = workload_of([0.0] * 4 + [0.3], [50] * 4 + [prompt], [100] * 4 + [2])
        load = OfferedLoad(workload.arrival_s, 0)
        return float(simulate(Scenario((setup,)), workload, load).requests.tpot_s[:4].max())

    assert slowest_tpot_s(16_000) > 1.2 * slowest_tpot_s(50)


def overflowing(rounds: int, **changes: object) -> SimulationResult:
    """Long prompts, each sent again after the others, over a host link that evictions use too."""
    setup = pool(host_tokens=100_000, host_s_per_token=1e-5)
    scenario = Scenario((setup,), kv_on_link=KvOnLink(TOKEN_BYTES), **changes)  # type: ignore[arg-type]
    workload = prompts_come_back(rounds)
    return simulate(scenario, workload, OfferedLoad(workload.arrival_s, 0))


def test_every_block_is_written_to_a_tier_once() -> None:
    written = overflowing(3, retention="write-through").tier_bytes
    assert written.written_to_host == pytest.approx(4 * 16 * BLOCK * TOKEN_BYTES)  # four prompts
    assert written.written_to_ssd == written.written_to_store == 0


def test_what_is_written_delays_what_is_read() -> None:
    """Making room for a prompt moves others down, over the link by which it comes in."""
    down = overflowing(3)  # blocks that leave HBM are written when they go
    through = overflowing(3, retention="write-through")  # and here they have been written before
    assert down.requests.host_hit_tokens[-4:].sum() > 0
    first = overflowing(2).requests.fetch_s[-4:]  # while the others are written for the first time
    last = through.requests.fetch_s[-4:]
    assert (first >= last - 1e-12).all()
    assert first.sum() > 1.2 * last.sum()


def test_a_block_is_there_when_it_has_been_written() -> None:
    """A prompt that comes again before its blocks have reached the store is computed again."""
    chain = list(range(16))

    def hits(gap_s: float) -> int:
        setup = pool(replicas=2, link_bytes_per_s=1e9)
        scenario = Scenario(
            (setup,),
            router="round-robin",
            kv_on_link=KvOnLink(TOKEN_BYTES),
            retention="write-through",
            store=SharedStore(100_000, 1e9),
        )
        workload = workload_of([0.0, gap_s], [16 * BLOCK] * 2, [4] * 2, [chain, chain], BLOCK)
        records = simulate(scenario, workload, OfferedLoad(workload.arrival_s, 0)).requests
        return int(records.store_hit_tokens[1])

    wire_s = 16 * BLOCK * TOKEN_BYTES / 1e9
    computed_s = float(
        simulate(
            Scenario((pool(),)), workload_of([0.0], [16 * BLOCK], [1]), OfferedLoad(np.zeros(1), 1)
        ).requests.finish_s[0]
    )
    assert hits(computed_s + 0.9 * wire_s) == 0
    assert hits(computed_s + 1.1 * wire_s) == 16 * BLOCK - 1


def test_a_slow_tier_takes_what_it_can_write() -> None:
    """Blocks that find all room being written to are lost, and nothing piles up."""
    setup = pool(ssd_tokens=20 * BLOCK, ssd_s_per_token=1.0)
    result = served(Scenario((setup,), kv_on_link=KvOnLink(TOKEN_BYTES)))
    assert result.requests.finished.all()
    assert result.requests.ssd_hit_tokens.sum() == 0
    assert result.tier_bytes.written_to_ssd <= 20 * BLOCK * TOKEN_BYTES
