"""Which places on the front are sure, against hand computation and chance."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from objectives.goals import Constraint
from results.replication import Contender, half_width, settled_records, standing
from tests.results.test_front import SPEED, THROUGHPUT, TTFT, trial

GOALS = (SPEED, THROUGHPUT)
BOUND = Constraint("ttft_p95_ms", "<=", 100.0)


def contender(number: int, runs: Sequence[tuple[float, ...]]) -> Contender:
    goals = (SPEED, THROUGHPUT, TTFT)[: len(runs[0])]
    record = trial(number, runs[0], goals)
    named = [dict(zip([g.metric for g in goals], run, strict=True)) for run in runs]
    return Contender(record, tuple(named))


def standings(*contenders: Contender, confidence: float = 0.95) -> tuple[set[int], set[int]]:
    bounds = (BOUND,) if len(contenders[0].runs[0]) > 2 else ()
    found = standing(contenders, GOALS, bounds, confidence)
    return set(found.out), set(found.unsettled)


def test_a_point_beaten_by_as_much_in_every_draw_is_out_however_draws_differ() -> None:
    draws = (1.0, 3.0, 0.5, 2.0)
    best = contender(0, [(10 * d, 10 * d) for d in draws])
    worse = contender(1, [(9.9 * d, 9.9 * d) for d in draws])
    assert standings(best, worse) == ({1}, set())


def test_a_point_that_led_by_luck_is_not_sure_until_draws_say_so() -> None:
    steady = contender(0, [(10.0, 10.0)] * 3)
    lucky = contender(1, [(11.0, 11.0), (9.0, 9.1), (9.1, 9.0)])
    assert standings(steady, lucky) == (set(), {0, 1})
    longer = contender(1, [(11.0, 11.0), *[(9.0 + 0.1 * k % 0.3, 9.1) for k in range(12)]])
    assert standings(contender(0, [(10.0, 10.0)] * 13), longer) == ({1}, set())


def test_points_that_trade_one_goal_for_the_other_are_settled_and_so_are_equal_ones() -> None:
    fast = contender(0, [(20.0, 5.0), (21.0, 5.1), (20.5, 5.2)])
    broad = contender(1, [(5.0, 20.0), (5.1, 21.0), (5.2, 20.5)])
    assert standings(fast, broad, contender(2, fast_runs(fast))) == (set(), set())


def fast_runs(one: Contender) -> list[tuple[float, ...]]:
    return [tuple(run.values()) for run in one.runs]


def test_a_difference_that_is_too_small_to_matter_is_settled() -> None:
    one = contender(0, [(10.0, 10.0), (10.01, 10.0), (9.99, 10.0)])
    other = contender(1, [(10.01, 10.01), (9.99, 10.0), (10.0, 10.01)])
    assert standings(one, other) == (set(), set())


def test_what_breaks_a_constraint_surely_is_out_and_beats_nobody() -> None:
    slow = contender(0, [(30.0, 30.0, 150.0), (31.0, 30.0, 160.0), (30.0, 31.0, 155.0)])
    kept = contender(1, [(10.0, 10.0, 50.0), (10.1, 10.0, 51.0), (10.0, 10.1, 52.0)])
    near = contender(2, [(9.0, 9.0, 99.0), (40.0, 40.0, 104.0), (9.1, 9.0, 98.0)])
    assert standings(slow, kept, near) == ({0}, {1, 2})


def test_a_run_without_values_puts_a_point_out() -> None:
    gone = Contender(trial(0, (50.0, 50.0)), ({}, {}))
    assert standings(gone, contender(1, [(1.0, 1.0)] * 2)) == ({0}, set())


def test_means_intervals_and_shares_of_the_front() -> None:
    runs = [(10.0, 1.0), (14.0, 1.0), (12.0, 1.0)]
    other = contender(1, [(11.0, 2.0), (11.0, 2.0), (11.0, 2.0)])
    one, rival = settled_records([contender(0, runs), other], GOALS, (), 0.95)
    assert one.replicated is not None and rival.replicated is not None
    assert one.values == {SPEED.metric: pytest.approx(12.0), THROUGHPUT.metric: 1.0}
    assert one.replicated.half_widths[SPEED.metric] == pytest.approx(2 * 4.3027 / 3**0.5, rel=1e-4)
    assert one.replicated.front_share == pytest.approx(2 / 3)
    assert rival.replicated.front_share == 1.0
    assert one.metrics == {SPEED.metric: 10.0, THROUGHPUT.metric: 1.0}


def test_the_interval_holds_the_mean_as_often_as_it_says() -> None:
    stream = np.random.default_rng(1)
    draws = stream.normal(3.0, 2.0, (4, 20_000))
    half = half_width(draws, 0.8)
    assert np.mean(np.abs(draws.mean(axis=0) - 3.0) <= half) == pytest.approx(0.8, abs=0.01)
