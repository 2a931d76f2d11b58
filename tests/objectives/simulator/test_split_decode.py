"""Attention and experts in pools of their own: the law of a step, and runs under it."""

from __future__ import annotations

import dataclasses
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from objectives.cost import RankBatch, StepCosts, step_seconds
from objectives.cost.step_costs import SplitDecode, ping_pong_seconds
from objectives.simulator import Scenario, SimulationResult
from tests.objectives.simulator.test_laws import chat, closed_loop, pool
from tests.objectives.simulator.worlds import made_up_costs

SECONDS = st.floats(1e-6, 1e-2)


def one_after_another(own: float, experts: float, way: float, parts: int, layers: int) -> float:
    """Every visit of every part to attention and to experts, in its turn; `way` is one trip."""
    attention_free = experts_free = 0.0
    back = [0.0] * parts
    for _, part in product(range(layers), range(parts)):
        attention_free = max(attention_free, back[part]) + own / layers
        experts_free = max(experts_free, attention_free + way / layers) + experts / layers
        back[part] = experts_free + way / layers
    return max(back)


@given(
    own=SECONDS, experts=SECONDS, way=SECONDS, parts=st.integers(1, 5), layers=st.integers(1, 90)
)
def test_the_law_is_that_of_parts_queueing_at_two_servers(
    own: float, experts: float, way: float, parts: int, layers: int
) -> None:
    told = ping_pong_seconds(own, experts, 0.0, 2 * way, parts, layers)
    assert told == pytest.approx(one_after_another(own, experts, way, parts, layers), rel=1e-9)


@given(own=SECONDS, experts=SECONDS, parts=st.integers(2, 4), layers=st.integers(2, 90))
def test_without_a_way_between_them_it_is_the_published_formula(
    own: float, experts: float, parts: int, layers: int
) -> None:
    """MegaScale-Infer (arXiv 2504.02263, section 4.1): t_a + t_e + (m L - 1) max(t_a, t_e)."""
    of_layer = own / layers, experts / layers
    published = sum(of_layer) + (parts * layers - 1) * max(of_layer)
    told = ping_pong_seconds(own, experts, 0.0, 0.0, parts, layers)
    assert told == pytest.approx(published, rel=1e-9)


@given(
    own=SECONDS,
    experts=SECONDS,
    line=SECONDS,
    exchange=SECONDS,
    faster=st.floats(0, 1),
    parts=st.integers(1, 4),
)
def test_a_faster_line_is_never_slower(
    own: float, experts: float, line: float, exchange: float, faster: float, parts: int
) -> None:
    slow = ping_pong_seconds(own, experts, line, exchange, parts, 60)
    fast = ping_pong_seconds(own, experts, line * faster, exchange * faster, parts, 60)
    assert fast <= slow * (1 + 1e-12)
    assert fast >= parts * max(own, experts) * (1 - 1e-12)


def split(costs: StepCosts, micro_batches: int, exchange_s: float = 0.0) -> StepCosts:
    nothing = np.zeros(len(costs.grid))
    parts = SplitDecode(micro_batches, 60, nothing, nothing + exchange_s)
    return dataclasses.replace(costs, split=parts)


def served(costs: StepCosts, clients: int = 8) -> SimulationResult:
    return closed_loop(Scenario((pool(costs=costs),)), chat(), clients)


def test_few_tokens_go_round_in_few_parts() -> None:
    costs = split(made_up_costs(), 4, exchange_s=5e-3)
    alone = split(made_up_costs(), 1, exchange_s=5e-3)
    one, many = [RankBatch((100,))], [RankBatch((100,) * 16)]
    assert step_seconds(costs, one) == step_seconds(alone, one)
    assert step_seconds(costs, many) != step_seconds(alone, many)


def test_one_part_and_no_way_is_decode_in_one_pool() -> None:
    together, apart = served(made_up_costs()), served(split(made_up_costs(), 1))
    for name in ("first_token_s", "finish_s"):
        told = [getattr(result.requests, name) for result in (together, apart)]
        np.testing.assert_allclose(told[0], told[1], rtol=1e-12)


def test_balanced_sides_are_both_busy_and_an_unhidden_exchange_leaves_bubbles() -> None:
    costs = dataclasses.replace(made_up_costs(), decode_token_s=np.zeros(1))
    costs = dataclasses.replace(costs, expert_s=costs.token_s + float(costs.decode_base_s[0]))
    hidden, waiting = (served(split(costs, 2, exchange_s=s)).pools[0] for s in (0.0, 0.05))
    assert hidden.experts_utilization > 0.85
    assert hidden.bubble_fraction < 0.15
    assert waiting.bubble_fraction > 0.6
    assert waiting.experts_utilization < 0.5 * hidden.experts_utilization


def test_tokens_are_conserved_whatever_the_parts() -> None:
    for micro_batches in (1, 2, 3):
        result = served(split(made_up_costs(), micro_batches, exchange_s=1e-3))
        outputs = result.requests.output_tokens
        assert result.requests.finished.all()
        assert result.pools[0].decode_tokens == (outputs - 1).sum()


def test_a_request_and_its_drafts_go_round_together() -> None:
    """One request that drafts is one part, whatever the micro-batches; two are two parts."""
    costs = {n: split(made_up_costs(verified=4), n, exchange_s=5e-3) for n in (1, 2, 3)}
    alone, two = [RankBatch((100.0,))], [RankBatch((100.0, 100.0))]
    assert step_seconds(costs[3], alone) == step_seconds(costs[1], alone)
    assert step_seconds(costs[3], two) == step_seconds(costs[2], two)
    assert step_seconds(costs[3], two) != step_seconds(costs[1], two)


def test_accepted_drafts_end_a_run_over_two_pools_sooner() -> None:
    plain = served(split(made_up_costs(), 2, exchange_s=1e-3))
    scenario = Scenario(
        (pool(costs=split(made_up_costs(verified=3), 2, exchange_s=1e-3)),),
        acceptance=(0.9, 0.8),
    )
    drafting = closed_loop(scenario, chat(), 8)
    assert drafting.requests.finished.all()
    assert drafting.makespan_s < 0.7 * plain.makespan_s
    assert drafting.pools[0].decode_tokens == plain.pools[0].decode_tokens
    assert drafting.pools[0].decode_request_steps < plain.pools[0].decode_request_steps
