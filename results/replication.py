"""Whose place on the front is sure: points compared over replications with common random numbers.

Replication r draws the same requests, arrivals and routing for every plan, so that plans are
compared pair by pair within each of them. A pair's difference in an objective is the mean over the
replications that both have, with Student's t interval (Law, Simulation Modeling and Analysis, 5th
edition 2015, section 10.2.1, the paired-t interval). It is taken of logarithms, so it is a ratio.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import moocore
import numpy as np
import numpy.typing as npt
from scipy.stats import t as student

from objectives.goals import Constraint, Objective
from results.trials import Replicated, TrialRecord

Values = npt.NDArray[np.float64]

# A smaller relative difference is not worth a further replication: the cost model is not as sure.
INDIFFERENCE = 0.005
# What counts in place of a value of 0, which has no logarithm.
LEAST_VALUE = 1e-9


@dataclass(frozen=True, slots=True)
class Contender:
    """A point and the metrics of each of its replications, the first being its trial's.

    A replication that gave no values (the plan did not fit, or broke off) is empty.
    """

    record: TrialRecord
    runs: tuple[Mapping[str, float], ...]


@dataclass(frozen=True)
class Standing:
    """Which contenders are surely beaten or surely break a constraint, and of which of the others
    that is not settled, by their places.
    """

    out: frozenset[int]
    unsettled: frozenset[int]


def standing(
    contenders: Sequence[Contender],
    objectives: Sequence[Objective],
    constraints: Sequence[Constraint],
    confidence: float,
) -> Standing:
    """How sure each place is, at a `confidence` of each comparison by itself.

    A contender is out where a constraint is surely broken, or where a contender that surely meets
    them is surely better in all objectives. It is settled where it surely meets the constraints
    and no other is surely or possibly better in all objectives by more than `INDIFFERENCE`.
    """
    gains = [_gains(one, objectives) for one in contenders]
    kept = [_excess(one, constraints, confidence) for one in contenders]
    out = {n for n, (low, _) in enumerate(kept) if low > 0 or not np.isfinite(gains[n]).all()}
    sure = {n for n, (_, high) in enumerate(kept) if high <= INDIFFERENCE} - out
    unsettled = set(range(len(contenders))) - out - sure
    there = sorted(set(range(len(contenders))) - out)
    for one in there:
        for other in there:
            if one == other:
                continue
            low, high = _interval(gains[one], gains[other], confidence)
            if (low == 0).all() and (high == 0).all():
                continue  # the same to the last bit: one will stand for both
            if (high <= 0).all() and other in sure:
                out.add(one)
            elif (low <= -INDIFFERENCE).all():
                unsettled.add(one)
    return Standing(frozenset(out), frozenset(unsettled - out))


def distance(
    record: TrialRecord,
    front: Sequence[TrialRecord],
    objectives: Sequence[Objective],
    constraints: Sequence[Constraint],
    spread: Values,
) -> float:
    """Deviations by which a point must be better in its objectives, and under its constraints, for
    no point of the front to beat what is best known of it; 0 or less where none does.

    `spread` holds the deviation of one run in each objective and then in each constraint.
    """
    goals = len(objectives)
    own = _logs(record.metrics, objectives)
    others = np.array([_logs(point.values, objectives) for point in front])
    needed = ((others - own) / spread[:goals]).min(axis=1).max() if len(front) else 0.0
    over = np.array(list(_excesses(record.metrics, constraints)))
    return float(max([needed, *(over / spread[goals:])]))


def spread_of(
    contenders: Sequence[Contender],
    objectives: Sequence[Objective],
    constraints: Sequence[Constraint],
) -> Values:
    """The deviation of one run, pooled over contenders: of each objective's logarithm, then of
    each constraint's relative excess. It is never 0, only very small.
    """
    rows = [
        np.column_stack([_gains(one, objectives), _violations(one, constraints)])
        for one in contenders
    ]
    finite = [row for row in rows if np.isfinite(row).all() and len(row) > 1]
    width = len(objectives) + len(constraints)
    if not finite:
        return np.full(width, 1e-9)
    variance = np.mean([row.var(axis=0, ddof=1) for row in finite], axis=0)
    spread: Values = np.maximum(np.sqrt(variance), 1e-9)
    return spread


def settled_records(
    contenders: Sequence[Contender],
    objectives: Sequence[Objective],
    constraints: Sequence[Constraint],
    confidence: float,
) -> list[TrialRecord]:
    """The records of the contenders with what their replications say."""
    shares = _front_shares(contenders, objectives, constraints)
    return [
        replace(one.record, replicated=_replicated(one, constraints, confidence, share))
        for one, share in zip(contenders, shares, strict=True)
    ]


def half_width(values: Values, confidence: float) -> Values:
    """Half of Student's t interval of the mean of the rows [r, k]; infinite for a single row.

    >>> half_width(np.array([[1.0], [2.0], [3.0]]), 0.95).round(3).tolist()
    [2.484]
    """
    count = len(values)
    if count < 2:
        return np.full(values.shape[1], np.inf)
    half: Values = _factor(count, confidence) * values.std(axis=0, ddof=1)
    return half


@lru_cache
def _factor(count: int, confidence: float) -> float:
    """Deviations of a single value that half the interval of the mean of so many is wide."""
    return float(student.ppf(0.5 + confidence / 2, count - 1)) / math.sqrt(count)


def _replicated(
    one: Contender, constraints: Sequence[Constraint], confidence: float, share: float
) -> Replicated:
    runs = one.runs
    names = [
        name
        for name in one.record.metrics
        if all(math.isfinite(run.get(name, math.nan)) for run in runs)
    ]
    table = np.array([[run[name] for name in names] for run in runs]).reshape(len(runs), -1)
    halves = half_width(table, confidence)
    over = _violations(one, constraints).mean(axis=0)
    return Replicated(
        count=len(runs),
        confidence=confidence,
        means=dict(zip(names, table.mean(axis=0).tolist(), strict=True)),
        half_widths=dict(zip(names, halves.tolist(), strict=True)),
        violations={
            str(bound): float(v) if math.isfinite(v) else 1.0
            for bound, v in zip(constraints, over, strict=True)
        },
        front_share=share,
    )


def _front_shares(
    contenders: Sequence[Contender],
    objectives: Sequence[Objective],
    constraints: Sequence[Constraint],
) -> list[float]:
    """In which share of its replications each contender met the constraints and none beat it."""
    gains = [_gains(one, objectives) for one in contenders]
    over = [_violations(one, constraints) for one in contenders]
    times = [0] * len(contenders)
    for run in range(max((len(one.runs) for one in contenders), default=0)):
        fit = [
            n
            for n, one in enumerate(contenders)
            if run < len(one.runs)
            and np.isfinite(gains[n][run]).all()
            and (over[n][run] <= 0).all()
        ]
        if fit:
            points = np.array([gains[n][run] for n in fit])
            best = moocore.is_nondominated(-points, keep_weakly=True)
            for n, kept in zip(fit, best, strict=True):
                times[n] += bool(kept)
    return [count / len(one.runs) for count, one in zip(times, contenders, strict=True)]


def _gains(one: Contender, objectives: Sequence[Objective]) -> Values:
    """Logarithms of the objectives [r, objective], larger being better; nan without a value."""
    return np.array([_logs(run, objectives) for run in one.runs])


def _logs(metrics: Mapping[str, float], objectives: Sequence[Objective]) -> Values:
    values = np.array([metrics.get(goal.metric, math.nan) for goal in objectives])
    signs = np.array([1.0 if goal.direction == "maximize" else -1.0 for goal in objectives])
    logs: Values = np.log(np.maximum(values, LEAST_VALUE)) * signs
    return logs


def _violations(one: Contender, constraints: Sequence[Constraint]) -> Values:
    """The relative excess over each constraint [r, constraint]; nan where it is not known."""
    rows = [list(_excesses(run, constraints)) for run in one.runs]
    return np.array(rows, dtype=np.float64).reshape(len(one.runs), len(constraints))


def _excesses(run: Mapping[str, float], constraints: Sequence[Constraint]) -> Iterable[float]:
    for bound in constraints:
        if run and not bound.applies(run):
            yield -1.0  # a bound on pools that the plan does not have
        else:
            known = math.isfinite(run.get(bound.metric, math.nan))
            yield bound.violation(run) if known else math.nan


def _excess(
    one: Contender, constraints: Sequence[Constraint], confidence: float
) -> tuple[float, float]:
    """The interval of the excess over the constraint that is worst in each of its ends."""
    if not constraints:
        return -math.inf, -math.inf
    table = _violations(one, constraints)
    if not np.isfinite(table).all():
        return math.inf, math.inf
    half = half_width(table, confidence)
    return float((table.mean(axis=0) - half).max()), float((table.mean(axis=0) + half).max())


def _interval(one: Values, other: Values, confidence: float) -> tuple[Values, Values]:
    """The interval of how much better `one` is than `other` in each objective."""
    common = min(len(one), len(other))
    difference = one[:common] - other[:common]
    half = half_width(difference, confidence)
    mean = difference.mean(axis=0)
    return mean - half, mean + half
