"""What users of comparable tools saw go wrong, as behaviour that must come out right here."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from objectives.simulator import KvOnLink, Scenario, SharedStore, simulate
from objectives.workload.load import OfferedLoad
from tests.objectives.simulator.test_knobs import sessions
from tests.objectives.simulator.test_laws import closed_loop, open_loop, pool
from tests.objectives.simulator.worlds import World, workload_of, worlds


@given(worlds())
@settings(max_examples=100)
def test_the_first_token_is_never_free(world: World) -> None:
    """However little there is to do, front end and host take their time."""
    scenario = world[0]
    records = simulate(*world).requests
    least_s = min(p.costs.host_s + p.costs.request_s for p in scenario.pools)
    assert (records.ttft_s[records.finished] >= scenario.frontend_s + least_s - 1e-12).all()


def test_prompts_of_unlike_lengths_cost_what_they_are_and_not_their_mean() -> None:
    def together_s(*prompts: int) -> float:
        workload = workload_of(np.zeros(len(prompts)), list(prompts), [1] * len(prompts))
        scenario = Scenario((pool(step_tokens=sum(prompts)),))
        return float(open_loop(scenario, workload).requests.ttft_s[0])

    # Attention grows with the square: by (n + d)^2 + (n - d)^2 - 2 n^2 pairs over two, a ns each.
    even_s, uneven_s = together_s(8192, 8192), together_s(15_000, 1384)
    pairs = ((15_000**2 + 1384**2) - 2 * 8192**2) / 2
    assert uneven_s - even_s == pytest.approx(1e-9 * pairs, rel=1e-6)


def test_a_conversation_that_outgrows_the_memory_is_told_and_others_go_on() -> None:
    turns = 6
    inputs = [200 * (turn + 1) for turn in range(turns)] * 2
    parents = [turn - 1 for turn in range(turns)]
    parents += [-1, *range(turns, 2 * turns - 1)]
    workload = workload_of(
        np.zeros(2 * turns), inputs, [10] * 2 * turns, parents=parents, gaps_s=[0.0] * 2 * turns
    )
    records = closed_loop(Scenario((pool(kv_blocks=45),)), workload, clients=1).requests
    fits = np.array(inputs) + 10 <= 45 * 16
    np.testing.assert_array_equal(records.finished, fits)
    assert records.sent.all() and not fits.all()


def test_first_turns_are_computed_by_the_prefill_pool_and_later_ones_near_their_cache() -> None:
    roles = ("prefill", "midfill", "decode")
    scenario = Scenario(
        tuple(pool(role=role) for role in roles),
        kv_on_link=KvOnLink(1e4),
        store=SharedStore(1_000_000, 1e11),
        retention="write-through",
        midfill_tokens=1000,
    )
    workload = sessions()
    first, later, decode = simulate(scenario, workload, OfferedLoad(workload.arrival_s, 0)).pools
    roots = workload.parent < 0
    # Those that come first; of the others' beginning all are found to begin with the shared one.
    assert first.prefill_tokens >= workload.input_tokens[roots].min()
    assert later.prefill_tokens > 0
    assert first.prefill_tokens + later.prefill_tokens < workload.input_tokens.sum() / 2
    assert decode.decode_tokens == (workload.output_tokens - 1).sum()


def test_the_same_rate_in_bursts_has_a_longer_tail() -> None:
    count = 400
    even_s = 0.05 * np.arange(count)
    bursts_s = 0.05 * 20 * (np.arange(count) // 20)
    tails = []
    for arrivals_s in (even_s, bursts_s):
        workload = workload_of(arrivals_s, [300] * count, [20] * count)
        records = open_loop(Scenario((pool(seats=8),)), workload).requests
        assert records.arrival_s[-1] == pytest.approx(20.0, abs=1.0)
        tails.append(np.percentile(records.ttft_s, 95))
    assert tails[1] > 3 * tails[0]


def test_prompts_from_a_hundred_to_a_million_tokens_take_ever_longer_per_token() -> None:
    """Beyond the first thousands, where a step's fixed part is shared by ever more tokens."""
    lengths = [128, 1024, 8192, 65_536, 262_144, 1_048_576]
    setup = pool(kv_blocks=70_000, step_tokens=8192)
    workload = workload_of(np.zeros(len(lengths)), lengths, [1] * len(lengths))
    ttft_s = closed_loop(Scenario((setup,)), workload, clients=1).requests.prefill_s
    assert (np.diff(ttft_s) > 0).all()
    per_token_s = ttft_s / lengths
    assert (np.diff(per_token_s[:3]) < 0).all()
    assert (np.diff(per_token_s[3:]) > 0).all()


def test_hits_rise_and_first_tokens_come_sooner_with_the_room_of_a_tier() -> None:
    """Conversations pause for longer than HBM remembers them."""
    workload, load = sessions(count=40), OfferedLoad(np.zeros(160), 8)
    hits, ttft_s = [], []
    for tokens in (0, 2_000, 8_000, 100_000):
        setup = pool(kv_blocks=90, step_tokens=32, host_tokens=tokens, host_s_per_token=1e-7)
        records = simulate(Scenario((setup,)), workload, load).requests
        hits.append(int(records.hit_tokens.sum()))
        ttft_s.append(float(records.ttft_s.mean()))
    assert hits == sorted(hits) and hits[-1] > 2 * hits[0]
    assert ttft_s == sorted(ttft_s, reverse=True) and ttft_s[-1] < 0.8 * ttft_s[0]
