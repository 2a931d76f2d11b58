"""The front against a naive one, hypervolume against hand computation, and their laws."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from objectives.goals import Constraint, Objective
from results.front import (
    ParetoFront,
    default_reference_point,
    hypervolume_history,
    knee,
    pareto_front,
)
from results.trials import TrialRecord, TrialState
from spaces.errors import NothingFeasible
from spaces.plan import DeploymentPlan, Load, Pool

SPEED = Objective("tokens_per_s_per_user_p50", "maximize")
THROUGHPUT = Objective("output_tokens_per_s_per_chip", "maximize")
TTFT = Objective("ttft_p95_ms", "minimize")
CHIPS = Objective("chips", "minimize")
ALL_OBJECTIVES = (SPEED, TTFT, THROUGHPUT, CHIPS)
PLAN = DeploymentPlan(
    model="m", topology="aggregated", pools=(Pool(role="aggregated", chip="h200", tp=8),)
)

Values = tuple[float, ...]
small = st.integers(1, 6).map(float)
value_lists = st.integers(1, 4).flatmap(
    lambda count: st.lists(st.tuples(*[small] * count), min_size=1, max_size=25)
)


def trial(
    number: int,
    values: Values,
    objectives: Sequence[Objective] = (SPEED, THROUGHPUT),
    *,
    point: int | None = None,
    state: TrialState = "complete",
    violation: float = 0.0,
) -> TrialRecord:
    load = Load(concurrency=1 + (number if point is None else point))
    return TrialRecord(
        number,
        PLAN.at(load),
        state,
        metrics={o.metric: v for o, v in zip(objectives, values, strict=True)},
        violations={"rule": violation},
    )


def trials_of(values: Sequence[Values]) -> tuple[list[TrialRecord], tuple[Objective, ...]]:
    objectives = ALL_OBJECTIVES[: len(values[0])]
    return [trial(i, row, objectives) for i, row in enumerate(values)], objectives


def losses(one: TrialRecord, objectives: Sequence[Objective]) -> Values:
    return tuple(o.loss(one.metrics[o.metric]) for o in objectives)


def dominates(one: Values, other: Values) -> bool:
    return all(a <= b for a, b in zip(one, other, strict=True)) and one != other


def naive_front(trials: Sequence[TrialRecord], objectives: Sequence[Objective]) -> set[Values]:
    rows = {losses(one, objectives) for one in trials}
    return {row for row in rows if not any(dominates(other, row) for other in rows)}


def naive_area(points: Sequence[Values]) -> float:
    """The area that maximized pairs cover above (0, 0), as a sum of strips from the right."""
    area, height = 0.0, 0.0
    for x, y in sorted(points, reverse=True):
        area += x * max(0.0, y - height)
        height = max(height, y)
    return area


@settings(deadline=None)
@given(value_lists)
def test_front_is_the_naive_front(values: list[Values]) -> None:
    trials, objectives = trials_of(values)
    front = pareto_front(trials, objectives)
    rows = [losses(point, objectives) for point in front.points]
    assert len(set(rows)) == len(rows)  # each vector of values once
    assert set(rows) == naive_front(trials, objectives)


@settings(deadline=None)
@given(value_lists)
def test_front_members_never_dominate_one_another(values: list[Values]) -> None:
    trials, objectives = trials_of(values)
    rows = [losses(point, objectives) for point in pareto_front(trials, objectives).points]
    assert rows
    assert not any(dominates(a, b) for a in rows for b in rows)


@settings(deadline=None)
@given(value_lists, st.randoms(use_true_random=False))
def test_order_of_trials_does_not_matter(values: list[Values], chance: random.Random) -> None:
    trials, objectives = trials_of(values)
    shuffled = chance.sample(trials, len(trials))
    front = pareto_front(trials, objectives)
    again = pareto_front(shuffled, objectives)
    assert again.points == front.points
    assert again.reference_point == front.reference_point
    assert again.hypervolume == pytest.approx(front.hypervolume, rel=1e-12)
    reference = front.reference_point
    assert hypervolume_history(shuffled, objectives, reference) == hypervolume_history(
        trials, objectives, reference
    )


@settings(deadline=None)
@given(value_lists, st.data())
def test_a_dominated_point_changes_nothing(values: list[Values], data: st.DataObject) -> None:
    trials, objectives = trials_of(values)
    base = data.draw(st.sampled_from(trials))
    worse = tuple(
        base.metrics[o.metric] * (0.5 if o.direction == "maximize" else 2.0) for o in objectives
    )
    front = pareto_front(trials, objectives)
    more = pareto_front([*trials, trial(len(trials), worse, objectives)], objectives)
    assert more.points == front.points
    assert more.hypervolume == pytest.approx(front.hypervolume, rel=1e-12)


@settings(deadline=None)
@given(st.lists(st.tuples(small, small), min_size=1, max_size=25))
def test_hypervolume_of_two_objectives_is_the_naive_area(values: list[Values]) -> None:
    trials = [trial(i, row) for i, row in enumerate(values)]
    front = pareto_front(trials, (SPEED, THROUGHPUT))
    assert front.hypervolume == pytest.approx(naive_area(values))


@pytest.mark.parametrize(
    ("objectives", "values", "reference", "volume"),
    [
        ((SPEED,), [(3.0,), (5.0,)], (0.0,), 5.0),
        ((TTFT,), [(3.0,), (5.0,)], (10.0,), 7.0),
        ((SPEED, THROUGHPUT), [(3.0, 4.0)], (0.0, 0.0), 12.0),
        ((SPEED, THROUGHPUT), [(1.0, 3.0), (2.0, 2.0), (3.0, 1.0)], (0.0, 0.0), 6.0),
        ((TTFT, CHIPS), [(1.0, 3.0), (3.0, 1.0)], (4.0, 4.0), 5.0),
        ((TTFT, THROUGHPUT), [(1.0, 2.0), (3.0, 5.0)], (4.0, 0.0), 9.0),
        ((SPEED, THROUGHPUT), [(9.0, -1.0), (2.0, 2.0)], (0.0, 0.0), 4.0),
        ((SPEED, TTFT, THROUGHPUT), [(2.0, 1.0, 1.0), (1.0, 1.0, 3.0)], (0.0, 3.0, 0.0), 8.0),
        (ALL_OBJECTIVES, [(2.0, 1.0, 3.0, 2.0)], (0.0, 2.0, 0.0, 4.0), 12.0),
    ],
)
def test_hypervolume_has_its_closed_form(
    objectives: Sequence[Objective], values: list[Values], reference: Values, volume: float
) -> None:
    trials = [trial(i, row, objectives) for i, row in enumerate(values)]
    front = pareto_front(trials, objectives, reference)
    assert front.hypervolume == pytest.approx(volume)
    assert front.reference_point == reference


@settings(deadline=None)
@given(value_lists)
def test_hypervolume_history_never_falls_and_ends_at_the_front(values: list[Values]) -> None:
    trials, objectives = trials_of(values)
    front = pareto_front(trials, objectives)
    history = hypervolume_history(trials, objectives, front.reference_point)
    assert len(history) == len(trials)
    assert history == sorted(history)
    assert history[-1] == pytest.approx(front.hypervolume)
    for count in range(1, len(trials) + 1):
        part = pareto_front(trials[:count], objectives)
        assert history[count - 1] == pytest.approx(part.hypervolume)


@settings(deadline=None)
@given(value_lists)
def test_default_reference_point_stays_while_a_study_grows(values: list[Values]) -> None:
    trials, objectives = trials_of(values)
    references = {
        default_reference_point(trials[:count], objectives) for count in range(1, len(trials) + 1)
    }
    assert len(references) == 1


def test_default_reference_point_follows_its_rule() -> None:
    slo = Objective("rejected_fraction", "minimize")
    objectives = (SPEED, TTFT, CHIPS, slo)
    later = trial(7, (9.0, 80.0, 1.0, 0.5), objectives)
    first = trial(3, (2.0, 50.0, 0.0, 0.1), objectives)
    bounds = [Constraint("ttft_p95_ms", "<=", 2000.0), Constraint("ttft_p95_ms", "<=", 900.0)]
    assert default_reference_point([later, first], objectives) == (0.0, 500.0, 1.0, 1.0)
    assert default_reference_point([later], objectives, bounds) == (0.0, 900.0, 10.0, 1.0)
    at_least = [Constraint("ttft_p95_ms", ">=", 5.0), Constraint("ttft_p95_ms", "<=", 0.0)]
    assert default_reference_point([first], (TTFT,), at_least) == (500.0,)


def test_reference_point_is_empty_while_nothing_settles_it() -> None:
    refused = [trial(0, (1.0, 1.0), (SPEED, TTFT), state="infeasible", violation=1.0)]
    assert default_reference_point(refused, (SPEED, TTFT)) == ()
    assert default_reference_point(refused, (SPEED, THROUGHPUT)) == (0.0, 0.0)
    assert pareto_front(refused, (SPEED, TTFT)) == ParetoFront((), (SPEED, TTFT), (), 0.0)
    assert hypervolume_history(refused, (SPEED, TTFT), ()) == [0.0]


def test_infeasible_and_failed_trials_are_never_on_the_front() -> None:
    kept = trial(0, (1.0, 1.0))
    better = [
        trial(1, (9.0, 9.0), state="infeasible", violation=0.1),
        trial(2, (9.0, 9.0), violation=0.1),
        trial(3, (9.0, 9.0), state="failed"),
        trial(4, (math.nan, 9.0)),
        trial(5, (math.inf, 9.0)),
        TrialRecord(6, PLAN, "complete", metrics={SPEED.metric: 9.0}),
    ]
    front = pareto_front([*better, kept], (SPEED, THROUGHPUT))
    assert front.points == (kept,)
    assert hypervolume_history([*better, kept], (SPEED, THROUGHPUT), (0.0, 0.0))[-1] == 1.0


def test_a_point_asked_for_twice_stands_once_with_its_earliest_trial() -> None:
    trials = [trial(5, (2.0, 2.0), point=1), trial(2, (2.0, 2.0), point=1)]
    assert [p.trial for p in pareto_front(trials, (SPEED, THROUGHPUT)).points] == [2]


def test_of_points_of_equal_value_the_one_with_the_fewest_chips_stands_for_all() -> None:
    trials = [trial(i, (2.0, 2.0)) for i in range(6)]
    one = pareto_front(trials, (SPEED, THROUGHPUT)).points
    assert [p.plan.point_id for p in one] == [min(t.plan.point_id for t in trials)]
    pool = PLAN.pools[0].model_copy(update={"tp": 4})
    smaller = replace(trials[0], trial=9, plan=PLAN.model_copy(update={"pools": (pool,)}))
    both = pareto_front([*trials, smaller], (SPEED, THROUGHPUT)).points
    assert [p.plan.chips for p in both] == [4]


def test_points_come_best_first_objective_first() -> None:
    trials = [trial(0, (1.0, 9.0)), trial(1, (9.0, 1.0)), trial(2, (5.0, 5.0))]
    front = pareto_front(trials, (SPEED, THROUGHPUT))
    assert [point.trial for point in front.points] == [1, 2, 0]


def test_one_objective_gives_the_best_point() -> None:
    trials = [trial(i, (value,), (TTFT,)) for i, value in enumerate([40.0, 20.0, 30.0, 20.0])]
    assert [p.metrics[TTFT.metric] for p in pareto_front(trials, (TTFT,)).points] == [20.0]


@pytest.mark.parametrize(
    ("objectives", "values", "expected"),
    [
        # On a logarithmic scale (1, 100) .. (100, 1) is a straight line; (20, 9.9) is above it.
        ((SPEED, THROUGHPUT), [(1.0, 100.0), (10.0, 10.0), (20.0, 9.9), (100.0, 1.0)], 2),
        ((SPEED, THROUGHPUT), [(1.0, 10.0), (8.0, 8.0), (10.0, 1.0)], 1),
        # Losses (0, 1), (0.3, 0.2), (1, 0): zeros are scaled as they are.
        ((TTFT, CHIPS), [(0.0, 10.0), (3.0, 2.0), (10.0, 0.0)], 1),
        # Every point on the line: the first of the front, which has the best first objective.
        ((SPEED, THROUGHPUT), [(1.0, 100.0), (10.0, 10.0), (100.0, 1.0)], 2),
        ((SPEED, THROUGHPUT), [(1.0, 2.0), (2.0, 1.0)], 1),
        ((SPEED, THROUGHPUT), [(3.0, 3.0)], 0),
        ((SPEED, TTFT, CHIPS), [(1.0, 1.0, 9.0), (8.0, 2.0, 2.0), (9.0, 9.0, 1.0)], 1),
    ],
)
def test_knee_is_the_farthest_point_from_the_line_between_the_ends(
    objectives: Sequence[Objective], values: list[Values], expected: int
) -> None:
    trials = [trial(i, row, objectives) for i, row in enumerate(values)]
    assert knee(pareto_front(trials, objectives)).trial == expected


def test_knee_does_not_depend_on_the_unit() -> None:
    values = [(12.0, 4135.0), (37.0, 2781.0), (47.0, 1812.0), (90.0, 300.0), (134.0, 7.0)]
    plain = [trial(i, row) for i, row in enumerate(values)]
    scaled = [trial(i, (x * 1000, y / 60)) for i, (x, y) in enumerate(values)]
    assert (
        knee(pareto_front(plain, (SPEED, THROUGHPUT))).trial
        == knee(pareto_front(scaled, (SPEED, THROUGHPUT))).trial
    )


def test_an_empty_front_has_no_knee() -> None:
    with pytest.raises(NothingFeasible, match="no point is feasible"):
        knee(pareto_front([], (SPEED, THROUGHPUT)))
