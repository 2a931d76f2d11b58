"""One point out of many: by the knee or by a metric, under extra conditions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from objectives.goals import Constraint, Objective
from objectives.metrics import metric_of
from results.front import ParetoFront, comparable, knee, pareto_front
from results.refusals import refusals_in_words
from results.trials import TrialRecord
from results.words import describe_load, describe_plan, format_value
from spaces.errors import InputError, NothingFeasible


def choose(
    trials: Sequence[TrialRecord],
    front: ParetoFront,
    *,
    where: Sequence[Constraint] = (),
    by: Literal["knee"] | Objective = "knee",
) -> TrialRecord:
    """The point to deploy, out of the feasible trials and the front that meet every condition.

    `knee` takes the knee of the front of the points that remain, so a point hidden behind an
    excluded one can be chosen. An objective takes the best point by that metric; of equal ones a
    point of the front, then the lowest point id. Raises `NothingFeasible` when no point remains
    and `InputError` when no remaining point has a value of the metric.
    """
    points = comparable([*trials, *front.points], front.objectives)
    if not points:
        raise NothingFeasible(f"no trial is feasible\n{refusals_in_words(trials)}".rstrip())
    left = [point for point in points if _worst_excess(point, where) <= 0]
    if not left:
        raise NothingFeasible(_why_nothing_is_left(points, where))
    if by == "knee":
        return knee(pareto_front(left, front.objectives))
    return _best(left, by, {point.plan.point_id for point in front.points})


def _best(points: list[TrialRecord], by: Objective, on_front: set[str]) -> TrialRecord:
    measured = comparable(points, [by])
    if not measured:
        raise InputError(
            "the metric to choose by must have a value", key=by.metric, remedy="choose another"
        )

    def rank(point: TrialRecord) -> tuple[float, bool, str]:
        point_id = point.plan.point_id
        return by.loss(point.values[by.metric]), point_id not in on_front, point_id

    return min(measured, key=rank)


def _worst_excess(point: TrialRecord, where: Sequence[Constraint]) -> float:
    return max((_excess(point, condition) for condition in where), default=-math.inf)


def _excess(point: TrialRecord, condition: Constraint) -> float:
    """The relative violation; infinite where the point has no value of the metric.

    A condition on a pool that the point does not have holds.
    """
    if not condition.applies(point.values):
        return -math.inf
    value = point.values.get(condition.metric, math.nan)
    return math.inf if math.isnan(value) else condition.violation(point.values)


def _why_nothing_is_left(points: list[TrialRecord], where: Sequence[Constraint]) -> str:
    nearest = min(points, key=lambda p: (_worst_excess(p, where), p.plan.point_id))
    counts = [_exclusion(points, condition) for condition in where]
    misses = [_miss(nearest, c) for c in where if _excess(nearest, c) > 0]
    name = f"{describe_plan(nearest.plan)}, {describe_load(nearest.plan)}"
    return "\n".join(
        [
            f"none of {len(points)} points meets the conditions",
            *counts,
            f"nearest miss: point {nearest.plan.point_id} ({name}): {'; '.join(misses)}",
        ]
    )


def _exclusion(points: list[TrialRecord], condition: Constraint) -> str:
    excluded = sum(_excess(point, condition) > 0 for point in points)
    return f"{condition} excludes {excluded} of {len(points)} points"


def _miss(point: TrialRecord, condition: Constraint) -> str:
    excess = _excess(point, condition)
    if math.isinf(excess):
        return f"{condition.metric} has no value"
    value = point.values[condition.metric]
    side = "above" if condition.relation == "<=" else "below"
    gap = f"{format_value(abs(value - condition.bound))} {metric_of(condition.metric).unit}"
    return (
        f"{condition.metric} is {format_value(value)}, {gap} ({excess:.1%}) {side} "
        f"{condition.bound:g}"
    )
