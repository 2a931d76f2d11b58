"""The Pareto front of a study: which points nothing beats, how much they cover, where it bends.

Signs are turned once, by `Objective.loss`; behind it everything is minimized.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import moocore
import numpy as np
import numpy.typing as npt

from objectives.goals import Constraint, Objective
from objectives.metrics import metric_of
from results.trials import TrialRecord
from spaces.errors import NothingFeasible

Losses = npt.NDArray[np.float64]
FIRST_VALUE_MULTIPLE = 10.0


@dataclass(frozen=True, slots=True)
class ParetoFront:
    """The feasible points that no other feasible point beats, best first objective first.

    `reference_point` holds one value for each objective, in the objective's own sign and unit; it
    is empty while nothing settles it. `hypervolume` is the volume between the points and it, in
    the product of the objectives' units.
    """

    points: tuple[TrialRecord, ...]
    objectives: tuple[Objective, ...]
    reference_point: tuple[float, ...]
    hypervolume: float


def pareto_front(
    trials: Sequence[TrialRecord],
    objectives: Sequence[Objective],
    reference_point: Sequence[float] | None = None,
    constraints: Sequence[Constraint] = (),
) -> ParetoFront:
    """The front of the trials for one to four objectives, whatever the order of the trials.

    A point stands in it once, with the values of its earliest trial. Of points equal in every
    objective (plans that differ only where it does not matter) one stands for all: the one with
    the fewest chips, then the first `point_id`.
    Without a `reference_point` the rule of `default_reference_point` gives one.
    """
    if reference_point is None:
        reference_point = default_reference_point(trials, objectives, constraints)
    found = comparable(trials, objectives)
    losses = np.array([_losses(trial, objectives) for trial in found])
    if not found:
        return ParetoFront((), tuple(objectives), tuple(reference_point), 0.0)
    kept = moocore.is_nondominated(losses, keep_weakly=True)
    points = _representatives(
        [trial for trial, keep in zip(found, kept, strict=True) if keep], objectives
    )
    points.sort(key=lambda trial: (_losses(trial, objectives)[0], trial.plan.point_id))
    volume = _hypervolume(losses[kept], _reference_losses(reference_point, objectives))
    return ParetoFront(tuple(points), tuple(objectives), tuple(reference_point), volume)


def _representatives(
    trials: Sequence[TrialRecord], objectives: Sequence[Objective]
) -> list[TrialRecord]:
    """One trial for each vector of objective values."""
    chosen: dict[tuple[float, ...], TrialRecord] = {}
    for trial in sorted(trials, key=lambda trial: (trial.plan.chips, trial.plan.point_id)):
        chosen.setdefault(_losses(trial, objectives), trial)
    return list(chosen.values())


def default_reference_point(
    trials: Sequence[TrialRecord],
    objectives: Sequence[Objective],
    constraints: Sequence[Constraint] = (),
) -> tuple[float, ...]:
    """Where hypervolume is measured from, in the objectives' own signs.

    A maximized metric counts from 0. A minimized one counts from its tightest positive upper
    bound among the constraints; without a bound a fraction counts from 1, and any other metric
    from ten times its value in the earliest feasible trial (from 1 where that value is 0). None of
    this moves when later trials are added, so the hypervolume of a study never falls. The answer
    is empty while a value is needed and no trial is feasible.
    """
    found = comparable(trials, objectives)
    first = min(found, key=lambda trial: trial.trial) if found else None
    values = [_reference_value(objective, first, constraints) for objective in objectives]
    known = [value for value in values if value is not None]
    return tuple(known) if len(known) == len(values) else ()


def hypervolume_history(
    trials: Sequence[TrialRecord],
    objectives: Sequence[Objective],
    reference_point: Sequence[float],
) -> list[float]:
    """The hypervolume after each trial, in order of trial number; it never falls."""
    front = GrowingFront(tuple(objectives), tuple(reference_point))
    return [front.add(trial) for trial in sorted(trials, key=lambda trial: trial.trial)]


@dataclass
class GrowingFront:
    """A front to which trials are added one by one, and its hypervolume, which never falls."""

    objectives: tuple[Objective, ...]
    reference_point: tuple[float, ...]
    volume: float = 0.0
    points: list[TrialRecord] = field(default_factory=list)
    _losses: list[tuple[float, ...]] = field(default_factory=list)

    def add(self, trial: TrialRecord) -> float:
        """Add a trial, feasible or not; the hypervolume with it, 0 without a reference point."""
        if not (trial.feasible and has_values(trial, self.objectives)):
            return self.volume
        new = _losses(trial, self.objectives)
        if not any(_no_worse(old, new) for old in self._losses):
            kept = [place for place, old in enumerate(self._losses) if not _no_worse(new, old)]
            self.points = [*(self.points[place] for place in kept), trial]
            self._losses = [*(self._losses[place] for place in kept), new]
            if self.reference_point:
                reference = _reference_losses(self.reference_point, self.objectives)
                now = _hypervolume(np.array(self._losses), reference)
                self.volume = max(self.volume, now)  # another order of sums may round down
        return self.volume


def knee(front: ParetoFront) -> TrialRecord:
    """The best compromise: the point farthest from the line between the front's ends.

    Each objective is scaled to 0 (best on the front) .. 1 (worst on the front) in the logarithm of
    its value, because latency against throughput is near a hyperbola, which on a linear scale
    bends to the worse side of that line; an objective with a value of 0 or less on the front is
    scaled as it is. With two objectives the ends are (0, 1) and (1, 0), and a point (a, b) lies
    (1 - a - b) / sqrt(2) from their line on the better side, so the point with the least sum is
    taken; the same sum serves any number of objectives. Of equal points the first of the front is
    taken: of two points the one with the better first objective. An empty front raises
    `NothingFeasible`.
    """
    if not front.points:
        raise NothingFeasible("no point is feasible, so the front has no knee")
    columns = [_scaled_losses(front.points, objective) for objective in front.objectives]
    sums = [round(sum(row), 12) for row in zip(*columns, strict=True)]  # ties are not noise
    return front.points[sums.index(min(sums))]


def comparable(
    trials: Sequence[TrialRecord], objectives: Sequence[Objective]
) -> list[TrialRecord]:
    """The feasible trials with a finite value for each objective, once for each point.

    They come sorted by trial number; of trials of the same point the earliest is kept.
    """
    by_point: dict[str, TrialRecord] = {}
    for trial in sorted(trials, key=lambda trial: trial.trial):
        if trial.feasible and has_values(trial, objectives):
            by_point.setdefault(trial.plan.point_id, trial)
    return list(by_point.values())


def has_values(trial: TrialRecord, objectives: Sequence[Objective]) -> bool:
    """Whether every objective has a finite value in the trial."""
    return all(math.isfinite(trial.values.get(o.metric, math.nan)) for o in objectives)


def _losses(trial: TrialRecord, objectives: Sequence[Objective]) -> tuple[float, ...]:
    return tuple(objective.loss(trial.values[objective.metric]) for objective in objectives)


def _no_worse(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return all(a <= b for a, b in zip(one, other, strict=True))


def _hypervolume(losses: Losses, reference: Losses) -> float:
    return float(moocore.hypervolume(losses, ref=reference))


def _reference_losses(reference_point: Sequence[float], objectives: Sequence[Objective]) -> Losses:
    pairs = zip(objectives, reference_point, strict=True)
    return np.array([objective.loss(value) for objective, value in pairs])


def _reference_value(
    objective: Objective, first: TrialRecord | None, constraints: Sequence[Constraint]
) -> float | None:
    if objective.direction == "maximize":
        return 0.0
    bounds = [
        constraint.bound
        for constraint in constraints
        if constraint.metric == objective.metric and constraint.relation == "<="
    ]
    if bounds and min(bounds) > 0:
        return min(bounds)
    if metric_of(objective.metric).unit == "fraction":
        return 1.0
    if first is None:
        return None
    return FIRST_VALUE_MULTIPLE * first.metrics[objective.metric] or 1.0


def _scaled_losses(points: Sequence[TrialRecord], objective: Objective) -> list[float]:
    values = [point.values[objective.metric] for point in points]
    if min(values) > 0:
        values = [math.log(value) for value in values]
    losses = [objective.loss(value) for value in values]
    best, worst = min(losses), max(losses)
    return [(loss - best) / ((worst - best) or 1.0) for loss in losses]
