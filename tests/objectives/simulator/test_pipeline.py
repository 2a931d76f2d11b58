"""Pipelines that only go round are leapt over: against the step-by-step simulator."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from objectives.simulator import PoolSetup, Scenario, simulate
from objectives.simulator.scenario import KvOnLink
from objectives.workload.load import OfferedLoad
from objectives.workload.workload import Workload
from tests.objectives.simulator.reference import ReferenceSimulator
from tests.objectives.simulator.test_oracle import assert_same
from tests.objectives.simulator.worlds import made_up_costs, workload_of


@st.composite
def pipelines(draw: st.DrawFn) -> PoolSetup:
    """A pool with stages; even ones tie, uneven ones make one stage the slowest."""
    stages = draw(st.integers(2, 5))
    costs = made_up_costs(
        stages,
        window=draw(st.sampled_from([0, 0, 90])),
        context=draw(st.sampled_from([1.0, 300.0])),
    )
    slowest = draw(st.sampled_from([None, None, 0, stages - 1]))
    if slowest is not None:
        share = np.ones(stages)
        share[slowest] = 3.0
        token_s = np.outer(share, costs.token_s[0])
        even = np.full(stages, 1e-6)
        costs = replace(costs, token_s=token_s, decode_token_s=even)
    return PoolSetup(
        role="aggregated",
        replicas=draw(st.integers(1, 2)),
        ranks=draw(st.sampled_from([1, 1, 2])),
        seats=draw(st.integers(1, 9)),
        step_tokens=64,
        alternating=draw(st.booleans()),
        kv_blocks=draw(st.sampled_from([140, 2000])),
        request_blocks=0,
        costs=costs,
        admission_steps=draw(st.sampled_from([1, 1, 7])),
    )


@st.composite
def long_answers(draw: st.DrawFn) -> tuple[Workload, OfferedLoad]:
    """Few prompts with answers long enough to go round, that come together or apart."""
    count = draw(st.integers(1, 9))
    inputs = draw(st.lists(st.integers(1, 90), min_size=count, max_size=count))
    outputs = draw(st.lists(st.integers(1, 400), min_size=count, max_size=count))
    gaps_s = draw(st.lists(st.sampled_from([0.0, 0.3, 1.0]), min_size=count, max_size=count))
    workload = workload_of(np.cumsum(gaps_s), inputs, outputs)
    clients = draw(st.integers(0, 6))
    return workload, OfferedLoad(np.zeros(count) if clients else workload.arrival_s, clients)


@given(pipelines(), long_answers())
@settings(max_examples=120, deadline=None)
def test_leaps_of_a_pipeline_are_exact(
    setup: PoolSetup, offered: tuple[Workload, OfferedLoad]
) -> None:
    scenario = Scenario((setup,), block_tokens=4, kv_on_link=KvOnLink(1e3))
    plain = ReferenceSimulator(scenario, *offered)
    plain.run()
    fast = simulate(scenario, *offered)
    for request in plain.requests:
        assert_same(request, fast.requests)
    gaps = np.array([gap for r in plain.requests for gap in np.diff(r.token_times)])
    assert fast.gap_counts.sum() == len(gaps)
    if len(gaps):
        assert fast.gap_mean_s == pytest.approx(gaps.mean(), rel=1e-9)
        middles = np.repeat(fast.gap_middle_s, fast.gap_counts)
        np.testing.assert_allclose(middles, np.sort(gaps), rtol=0.005)


def test_bubbles_and_batches_are_counted_through_leaps() -> None:
    """One request in two stages: half of either stages' time is idle, one request in each step."""
    costs = replace(made_up_costs(stages=2), host_s=0.0, request_s=0.0)
    setup = PoolSetup("aggregated", 1, 1, 4, 64, False, 2000, 0, costs)
    workload = workload_of([0.0], [10], [500])
    told = simulate(Scenario((setup,)), workload, OfferedLoad(np.zeros(1), 1)).pools[0]
    assert told.steps == 500
    assert told.batch_steps == (0, 500)
    assert told.bubble_fraction == pytest.approx(0.5, rel=1e-9)
