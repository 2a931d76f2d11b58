"""Which plans to simulate next, told by their corrected estimates and what was simulated."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import moocore
import numpy as np
import numpy.typing as npt

from objectives.goals import Constraint, Objective
from optimizer.proposing.candidates import Candidates
from optimizer.proposing.surrogate import (
    FIRST_NOISE,
    ROUGH_PRIOR,
    Correction,
    Plans,
    corrections,
)
from results.front import has_values
from results.trials import TrialRecord
from spaces.plan import DeploymentPlan

Values = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

# The correction is learned anew when a tenth more plans are told, and at least eight.
LEAST_NEWS, SHARE_OF_NEWS = 8, 0.1
# The luck needed against nothing.
_NONE = -1e3
# What the sum of a plan's gains counts beside its luck: it decides the first choice of all, and
# between plans that lead in one objective by as much.
_TIE = 1e-3
# One choice of so many goes by the estimates as they are: of plans unlike the told ones the
# correction can be wrong by far more than it says, and nothing would ever find it out.
UNCORRECTED = 8
# Luck that a plan needs beyond its own where all told plans of its branch gave no values.
_TROUBLE = 6.0


class Guide:
    """Proposes the candidates that need the least luck to be on the front.

    The luck of a candidate counts how many standard deviations better than its corrected
    estimate all its objectives must turn out for no known point to beat it, and to meet the
    constraints. Plans under way, and of a batch each choice by the next, are taken to turn out as
    estimated, so that a batch spreads along the front. One choice of `UNCORRECTED` counts from the
    estimates alone.

    What is proposed follows from the told trials alone: a guide that has seen them batch by batch
    and one that sees them all at once propose the same.
    """

    def __init__(
        self,
        candidates: Candidates,
        objectives: Sequence[Objective],
        constraints: Sequence[Constraint],
    ) -> None:
        self._candidates = candidates
        self._objectives = tuple(objectives)
        self._constraints = tuple(bound for bound in constraints if bound.bound > 0)
        self._told: list[TrialRecord] = []
        self._rows: list[int | None] = []
        self._row_of: dict[str, int | None] = {}
        self._front = np.empty((0, len(self._objectives)))
        self._fitted = -1

    def propose(
        self,
        count: int,
        records: Sequence[TrialRecord],
        under_way: Sequence[DeploymentPlan] = (),
    ) -> list[DeploymentPlan]:
        """Up to `count` plans without a record and not under way.

        `records` only grow from call to call.
        """
        news = [record for record in records if record.same_as is None][len(self._told) :]
        self._told.extend(news)
        self._rows.extend(self._row(record.plan) for record in news)
        size = fitted_size(len(self._told))
        if size != self._fitted:
            self._fit(size)
            self._luck = np.full(self._gains.shape[1], _NONE)
            self._take_in(self._told, self._rows)
        else:
            self._take_in(news, self._rows[len(self._rows) - len(news) :])
        return [self._candidates.plan(row) for row in self._chosen(count, under_way)]

    def _chosen(self, count: int, under_way: Sequence[DeploymentPlan]) -> list[int]:
        luck = self._luck.copy()
        expected = [place for plan in under_way if (place := self._place(plan)) is not None]
        for place in expected:
            self._expect(place, luck)
        handicap = self._short + self._trouble() - _TIE * self._worth
        first = len(self._told) + len(under_way)
        chosen = []
        for turn in range(first, first + count):
            alone = turn % UNCORRECTED == UNCORRECTED - 1
            needed = self._uncorrected_luck(expected) if alone else luck
            place = int(np.argmin(np.where(np.isinf(luck), np.inf, needed + handicap)))
            if not np.isfinite(luck[place]):
                break
            chosen.append(int(self._candidates.rows[place]))
            expected.append(place)
            self._expect(place, luck)
        return chosen

    def _uncorrected_luck(self, expected: Sequence[int]) -> Values:
        """The luck of each candidate by its estimate alone, as unsure as before any trial."""
        gains, per_deviation = self._estimated
        luck = np.full(gains.shape[1], _NONE)
        for point in (*self._front, *gains[:, expected].T):
            np.maximum(luck, luck_needed(point, gains, per_deviation), out=luck)
        return luck

    def _place(self, plan: DeploymentPlan) -> int | None:
        """The place of a plan among the candidates."""
        row = self._row(plan)
        return None if row is None else self._place_of.get(row)

    def _row(self, plan: DeploymentPlan) -> int | None:
        """The place of a plan in the whole space, looked up once."""
        if plan.point_id not in self._row_of:
            self._row_of[plan.point_id] = self._candidates.row_of(plan)
        return self._row_of[plan.point_id]

    def _expect(self, place: int, luck: Values) -> None:
        """Hold the candidates against one of them, as if it had turned out as estimated."""
        np.maximum(luck, self._luck_against(self._gains[:, place]), out=luck)
        luck[place] = np.inf

    def _trouble(self) -> Values:
        """What speaks against each candidate: plans of its branch that were refused or failed."""
        known = [place for place, row in enumerate(self._rows) if row is not None]
        rows = np.array([self._rows[place] for place in known], dtype=np.int64)
        told = [self._told[place] for place in known]
        lost = [r.state != "pruned" and not has_values(r, self._objectives) for r in told]
        branches, total = self._candidates.branches(rows), len(self._candidates.tables)
        failed = np.bincount(branches, weights=np.array(lost, dtype=np.float64), minlength=total)
        share = failed / (np.bincount(branches, minlength=total) + 1.0)
        found: Values = _TROUBLE * share[self._branches]
        return found

    def _fit(self, size: int) -> None:
        """Learn the correction from the first trials, and what it makes of the estimates."""
        candidates, metrics = self._candidates, self._candidates.metrics
        known = [place for place, row in enumerate(self._rows[:size]) if row is not None]
        rows = np.array([self._rows[place] for place in known], dtype=np.int64)
        values = [[self._told[n].metrics.get(name, np.nan) for name in metrics] for n in known]
        simulated = np.array(values, dtype=np.float64).reshape(len(known), len(metrics))
        residuals = _logs(simulated) - candidates.logs(rows)
        residuals[~np.isfinite(residuals)] = np.nan
        told = Plans(candidates.features(rows), candidates.groups(rows))
        correction = corrections(self._plans, told, residuals, candidates.rough)
        logs = candidates.logs(candidates.rows) + correction.mean
        goals = len(self._objectives)
        # One row for each objective: the minimum over few rows is quick.
        self._gains = np.ascontiguousarray((logs[:, :goals] * self._signs).T)
        self._per_deviation = np.ascontiguousarray(1.0 / correction.deviation[:, :goals].T)
        self._worth = self._gains.sum(axis=0)
        self._short = self._shortfall(logs, correction)
        self._fitted = size

    def _shortfall(self, logs: Values, correction: Correction) -> Values:
        """Standard deviations by which each candidate misses the constraints, summed.

        A constraint on a pool is none for a plan without it.
        """
        short = np.zeros(len(logs))
        for bound in self._constraints:
            metric = self._candidates.metrics.index(bound.metric)
            over = logs[:, metric] - np.log(bound.bound)
            signed = over if bound.relation == "<=" else -over
            missing = np.maximum(signed / correction.deviation[:, metric], 0.0)
            short += np.where(self._candidates.with_pool(bound.pool), missing, 0.0)
        return short

    def _take_in(self, told: Sequence[TrialRecord], rows: Sequence[int | None]) -> None:
        """Hold the candidates against trials; no luck is enough for what is known."""
        points = [self._told_gains(record) for record in told if record.feasible]
        there = np.array([point for point in points if np.isfinite(point).all()])
        if len(there):
            there = there[moocore.is_nondominated(-there)]
            for point in there:
                np.maximum(self._luck, self._luck_against(point), out=self._luck)
            front = np.vstack([self._front, there])
            self._front = front[moocore.is_nondominated(-front)]
        for row in rows:
            place = self._place_of.get(-1 if row is None else row)
            if place is not None:
                self._luck[place] = np.inf

    def _luck_against(self, point: Values) -> Values:
        return luck_needed(point, self._gains, self._per_deviation)

    def _told_gains(self, record: TrialRecord) -> Values:
        values = [record.metrics.get(goal.metric, np.nan) for goal in self._objectives]
        gains: Values = _logs(np.array(values)) * self._signs
        return gains

    @cached_property
    def _signs(self) -> Values:
        return np.array([1.0 if o.direction == "maximize" else -1.0 for o in self._objectives])

    @cached_property
    def _estimated(self) -> tuple[Values, Values]:
        """Gains by the estimates alone [objective, candidate], 1 / deviation [objective, 1]."""
        goals = len(self._objectives)
        logs = self._candidates.logs(self._candidates.rows)[:, :goals]
        rough = np.array(self._candidates.rough)[:goals, None]
        gains = np.ascontiguousarray((logs * self._signs).T)
        return gains, 1.0 / np.where(rough, ROUGH_PRIOR, FIRST_NOISE)

    @cached_property
    def _plans(self) -> Plans:
        rows = self._candidates.rows
        return Plans(self._candidates.features(rows), self._candidates.groups(rows))

    @cached_property
    def _branches(self) -> Ints:
        return self._candidates.branches(self._candidates.rows)

    @cached_property
    def _place_of(self) -> dict[int, int]:
        return {row: place for place, row in enumerate(self._candidates.rows.tolist())}


def luck_needed(point: Values, gains: Values, per_deviation: Values) -> Values:
    """Deviations each must be better than its `gains` [objective, n] for no point to beat it."""
    needed: Values = ((point[:, None] - gains) * per_deviation).min(axis=0)
    return needed


def fitted_size(told: int) -> int:
    """From how many of so many told trials the correction is learned.

    >>> [fitted_size(told) for told in (0, 7, 8, 20, 100, 1000)]
    [0, 0, 8, 16, 96, 998]
    """
    size = 0
    while (more := size + max(LEAST_NEWS, int(SHARE_OF_NEWS * size))) <= told:
        size = more
    return size


def _logs(values: Values) -> Values:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.log(values))
