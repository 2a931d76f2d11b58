"""Short simulations first: which plans are worth the whole one.

Values of short runs never stand for those of whole ones. They tell, with what they are off by in
this study, which plans could still be on the front; the others are pruned and say so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import moocore
import numpy as np
import numpy.typing as npt

from optimizer.evaluate import Evaluation, Sample, shortened_workloads
from optimizer.fidelity.error_model import ErrorModel
from optimizer.problem import Problem
from optimizer.proposing.candidates import wanted_metrics
from optimizer.proposing.guide import fitted_size
from optimizer.storing.records import StoredTrial
from results.trials import TrialRecord
from spaces.plan import TOPOLOGY_ROLES, DeploymentPlan, Load

Values = npt.NDArray[np.float64]

# Plans simulated both ways before any plan is pruned, and the latest from which is learned.
LEAST_PAIRS, MOST_PAIRS = 16, 200
# Standard deviations of luck a plan may need to be on the front and still be promoted.
MOST_LUCK = 2.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a plan is promoted to the whole simulation, and in words why."""

    promoted: bool
    reason: str


@dataclass
class Screening:
    """Judges short simulations by the whole ones of the same study.

    Verdicts follow from the trials told so far, so a study that was killed gives the same ones.
    """

    problem: Problem
    fraction: float
    screened: int = 0
    _short_requests: int = 0
    _whole: int = 0
    _whole_requests: int = 0
    _pairs: list[tuple[Values, Values]] = field(default_factory=list)
    _front: list[Values] = field(default_factory=list)
    _models: list[ErrorModel | None] = field(default_factory=list)
    _models_of: int = 0
    _possible: dict[Load | None, bool] = field(default_factory=dict)

    @property
    def cost(self) -> float:
        """What the short simulations took, in requests of whole ones; 0 before there is one."""
        return self._short_requests * self._whole / max(self._whole_requests, 1)

    def sample_of(self, plan: DeploymentPlan) -> Sample | None:
        """The short simulation of a plan; None where its load needs the whole run."""
        if plan.load not in self._possible:
            problem = self.problem
            short = shortened_workloads(problem.workloads, plan.load, problem.rules, self.fraction)
            self._possible[plan.load] = short is not None
        return Sample(plan, self.fraction) if self._possible[plan.load] else None

    def told(self, trial: StoredTrial) -> None:
        """Learn from a trial."""
        record = trial.record
        if record.same_as is not None:
            return
        self._add_to_front(record)
        if trial.evaluation.simulated_requests:  # none where a fork knew it
            self._whole += 1
            self._whole_requests += trial.evaluation.simulated_requests
        if trial.short is None:
            return
        self.screened += 1
        self._short_requests += trial.short.simulated_requests
        short, whole = self._logs(trial.short), self._logs(trial.evaluation)
        if _finite((whole - short)[: self._goals]):
            self._pairs.append((self._features(record.plan, short), whole - short))

    def verdicts(self, asked: Sequence[tuple[DeploymentPlan, Evaluation | None]]) -> list[Verdict]:
        """What becomes of plans whose short simulations are there, None where one had none."""
        logs = [None if short is None else self._logs(short) for _, short in asked]
        judged = [
            n
            for n, found in enumerate(logs)
            if found is not None and _finite(found[: self._goals])
        ]
        needed = dict.fromkeys(range(len(asked)), -math.inf)
        if judged and len(self._pairs) >= LEAST_PAIRS and self._front:
            short = np.array([logs[n] for n in judged])
            plans = [asked[n][0] for n in judged]
            needed |= dict(zip(judged, self._luck_needed(plans, short).tolist(), strict=True))
        return [_verdict(needed[n], whole_run=short is None) for n, (_, short) in enumerate(asked)]

    def _luck_needed(self, plans: Sequence[DeploymentPlan], short: Values) -> Values:
        """Standard deviations better than predicted that each plan must be, in every objective
        against some point of the front and in every constraint.
        """
        features = np.array(
            [self._features(plan, row) for plan, row in zip(plans, short, strict=True)]
        )
        mean, deviation = self._predicted(features, short)
        return np.maximum(
            self._against_front(mean, deviation), self._against_bounds(mean, deviation)
        )

    def _predicted(self, features: Values, short: Values) -> tuple[Values, Values]:
        """Mean and deviation of the logarithms [plan, metric] that whole runs would give.

        Each metric is told by the pairs that have it; the deviation is infinite where none do.
        """
        mean, deviation = short.copy(), np.full_like(short, np.inf)
        for column, model in enumerate(self._learned()):
            if model is not None:
                found = model.at(features)
                mean[:, column] += found.mean
                deviation[:, column] = found.deviation
        return mean, deviation

    def _learned(self) -> list[ErrorModel | None]:
        """A model for each metric, learned anew when a tenth more plans are known both ways."""
        size = fitted_size(len(self._pairs))
        if size != self._models_of:
            told = self._pairs[max(0, size - MOST_PAIRS) : size]
            known = np.array([about for about, _ in told])
            residuals = np.array([residual for _, residual in told])
            self._models = [_model(known, column) for column in residuals.T]
            self._models_of = size
        return self._models

    def _against_front(self, mean: Values, deviation: Values) -> Values:
        gains = mean[:, : self._goals] * self._signs
        luck = np.full(len(gains), -np.inf)
        for point in self._front:
            needed = ((point - gains) / deviation[:, : self._goals]).min(axis=1)
            np.maximum(luck, needed, out=luck)
        return luck

    def _against_bounds(self, mean: Values, deviation: Values) -> Values:
        worst = np.full(len(mean), -np.inf)
        for bound in self.problem.constraints:
            column = self._metrics.index(bound.metric)
            if bound.bound > 0:
                over = mean[:, column] - math.log(bound.bound)
                signed = over if bound.relation == "<=" else -over
                luck = np.nan_to_num(signed / deviation[:, column], nan=-np.inf)
                np.maximum(worst, luck, out=worst)
        return worst

    def _add_to_front(self, record: TrialRecord) -> None:
        gains = self._logs(record)[: self._goals] * self._signs
        if not (record.feasible and _finite(gains)):
            return
        points = np.array([*self._front, gains])
        self._front = list(points[moocore.is_nondominated(-points)])

    def _logs(self, found: Evaluation | TrialRecord) -> Values:
        """Logarithms of the metrics that count; of one that is absent or not positive nan."""
        values = np.array([found.metrics.get(name, math.nan) for name in self._metrics])
        with np.errstate(divide="ignore", invalid="ignore"):
            logs: Values = np.log(values)
        return logs

    def _features(self, plan: DeploymentPlan, short: Values) -> Values:
        """What the error may hang on: topology, chips, load, and what the short run found."""
        topology = [float(plan.topology == name) for name in TOPOLOGY_ROLES]
        load = math.log(plan.load.value) if plan.load else 0.0
        return np.array([*topology, math.log(plan.chips), load, *short[: self._goals]])

    @cached_property
    def _metrics(self) -> tuple[str, ...]:
        return wanted_metrics(self.problem.objectives, self.problem.constraints)

    @cached_property
    def _goals(self) -> int:
        return len(self.problem.objectives)

    @cached_property
    def _signs(self) -> Values:
        goals = self.problem.objectives
        return np.array([1.0 if goal.direction == "maximize" else -1.0 for goal in goals])


def _model(known: Values, residuals: Values) -> ErrorModel | None:
    there = np.isfinite(residuals)
    if there.sum() < LEAST_PAIRS:
        return None
    return ErrorModel.of(known[there], residuals[there])


def _verdict(needed: float, *, whole_run: bool) -> Verdict:
    if whole_run:
        return Verdict(True, "its load needs the whole run")
    if needed == -math.inf:
        return Verdict(True, "too little is known of short runs")
    told = f"its short run is {needed:.1f} standard deviations short of the front"
    return Verdict(needed <= MOST_LUCK, f"{told}, {MOST_LUCK:g} are allowed")


def _finite(values: Values) -> bool:
    return bool(np.isfinite(values).all())
