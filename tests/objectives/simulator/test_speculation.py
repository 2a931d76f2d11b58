"""Steps drawn for answers with accepted drafts, and what they do to a run."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from objectives.simulator import simulate
from objectives.simulator.scenario import Scenario
from objectives.simulator.speculation import steps_of_answers, steps_to_reach
from objectives.workload.load import OfferedLoad
from tests.objectives.simulator.test_laws import pool
from tests.objectives.simulator.worlds import constant_step, workload_of

RATES = (0.7, 0.5, 0.1)


def stepwise(tokens: int, acceptance: tuple[float, ...], rng: np.random.Generator) -> int:
    """Steps until `tokens` are given out, each draft judged after the one before it."""
    steps = 0
    while tokens > 0:
        steps += 1
        tokens -= 1
        before = 1.0
        for rate in acceptance:
            if rng.random() >= rate / before:
                break
            tokens -= 1
            before = rate
    return steps


def test_steps_are_distributed_as_if_every_draft_were_judged() -> None:
    rng = np.random.default_rng(5)
    for tokens in (1, 2, 7, 40):
        drawn = steps_to_reach(np.full(20_000, tokens), RATES, np.random.default_rng(6))
        judged = [stepwise(tokens, RATES, rng) for _ in range(20_000)]
        counts = np.array([np.bincount(each, minlength=tokens + 1) for each in (drawn, judged)])
        shares = counts / 20_000
        # Three and a half standard deviations of a difference of two shares.
        allowed = 3.5 * np.sqrt(2 * shares.mean(axis=0) * (1 - shares.mean(axis=0)) / 20_000)
        assert (np.abs(shares[0] - shares[1]) <= allowed + 1e-12).all()


def test_long_answers_take_their_length_over_the_mean_tokens_of_a_step() -> None:
    steps = steps_to_reach(np.full(500, 100_000), RATES, np.random.default_rng(1))
    assert 100_000 / steps.mean() == pytest.approx(1 + sum(RATES), rel=1e-3)


@given(
    tokens=st.lists(st.integers(0, 300), min_size=1, max_size=20),
    rates=st.lists(st.floats(0, 1), min_size=1, max_size=5).map(lambda r: sorted(r, reverse=True)),
)
def test_steps_lie_between_all_drafts_and_none(tokens: list[int], rates: list[float]) -> None:
    wanted = np.array(tokens)
    steps = steps_to_reach(wanted, tuple(rates), np.random.default_rng(0))
    assert (steps >= -(-wanted // (1 + len(rates)))).all()
    assert (steps <= wanted).all()


@pytest.mark.parametrize(("rate", "steps"), [(0.0, 99), (1.0, 33)])
def test_certain_drafts_leave_nothing_to_chance(rate: float, steps: int) -> None:
    drawn = steps_to_reach(np.array([99]), (rate, rate), np.random.default_rng(0))
    assert drawn.tolist() == [steps]


def test_a_request_handed_over_has_no_drafts_in_its_first_step() -> None:
    two = Scenario((pool(role="prefill"), pool(role="decode")), acceptance=(1.0,))
    one = Scenario((pool(),), acceptance=(1.0,))
    outputs = np.array([1, 2, 3, 12])
    assert steps_of_answers(one, outputs).tolist() == [0, 1, 1, 6]
    assert steps_of_answers(two, outputs).tolist() == [0, 1, 2, 6]


def test_the_same_seed_draws_the_same_steps() -> None:
    drawn = [
        steps_of_answers(
            Scenario((pool(),), acceptance=RATES, seed=seed), np.full(50, 90)
        ).tolist()
        for seed in (1, 1, 2)
    ]
    assert drawn[0] == drawn[1] != drawn[2]


def test_tpot_is_the_time_of_a_step_over_its_tokens() -> None:
    costs = dataclasses.replace(constant_step(0.01, seats=4), verified_tokens=4)
    scenario = Scenario((pool(costs=costs, seats=4, step_tokens=64),), acceptance=RATES)
    workload = workload_of([0.0] * 40, [8] * 40, [2001] * 40)
    records = simulate(scenario, workload, OfferedLoad(workload.arrival_s, 4)).requests
    assert (records.decode_steps < 2000).all()
    seconds = records.decode_steps * 0.01 / 2000
    np.testing.assert_allclose(records.tpot_s, seconds, rtol=1e-9)
    assert records.tpot_s.mean() == pytest.approx(0.01 / (1 + sum(RATES)), rel=0.01)
