"""What the analytic estimate is off by, learned from the simulations of the study.

A Bayesian linear regression of log(simulated / estimated) on what a plan is made of, one for each
topology and metric. With few simulations it stays near zero and says that it is unsure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

# What estimates are off by before anything is known, as the standard deviation of a logarithm:
# for a plan by itself, and by each of its features.
FIRST_NOISE = 0.15
PRIOR = 0.1
# The same for a metric that nothing estimates, or only roughly: it is learned from the trials.
ROUGH_PRIOR = 2.0
# The least noise: no metric of a finite run is surer.
LEAST_NOISE = 0.003
# Rounds in which the noise is told from the residuals.
ROUNDS = 3


@dataclass(frozen=True)
class Correction:
    """Mean and deviation of log(simulated / estimated) for every candidate [n, metric]."""

    mean: Values
    deviation: Values


@dataclass(frozen=True)
class Plans:
    """What plans are made of [n, feature], and the group [n] within which they are compared."""

    features: Values
    groups: Ints

    @cached_property
    def designs(self) -> dict[int, _Design]:
        """The plans of each group as regressors."""
        return {
            int(group): _Design.of(self.features, np.flatnonzero(self.groups == group))
            for group in np.unique(self.groups)
        }


@dataclass(frozen=True)
class _Design:
    """Rows `members` of some features, each column with mean 0 and deviation 1, after a one."""

    members: Ints
    kept: npt.NDArray[np.bool_]
    centre: Values
    scale: Values
    rows: Values

    @classmethod
    def of(cls, features: Values, members: Ints) -> _Design:
        own = features[members]
        spread = own.std(axis=0)
        kept = spread > 1e-9
        centre, scale = own[:, kept].mean(axis=0), spread[kept]
        return cls(members, kept, centre, scale, _regressors(own[:, kept], centre, scale))

    def of_others(self, features: Values) -> Values:
        """Other plans as regressors, on the scale of these."""
        return _regressors(features[:, self.kept], self.centre, self.scale)


def _regressors(features: Values, centre: Values, scale: Values) -> Values:
    return np.hstack([np.ones((len(features), 1)), (features - centre) / scale])


def corrections(
    candidates: Plans, told: Plans, residuals: Values, rough: Sequence[bool] = ()
) -> Correction:
    """The correction of the candidates from the `residuals` [t, metric] of the `told` plans [t].

    Residuals may be nan; those of a group are learned from one another alone. Metrics that are
    `rough` [metric] have hardly an estimate, so that residuals are all that is known of them.
    """
    priors = [ROUGH_PRIOR if each else PRIOR for each in rough] or [PRIOR] * residuals.shape[1]
    shape = (len(candidates.groups), residuals.shape[1])
    mean, deviation = np.zeros(shape), np.zeros(shape)
    for group, design in candidates.designs.items():
        known = told.groups == group
        rows = design.of_others(told.features[known])
        for metric in range(shape[1]):
            values = residuals[known, metric]
            there = np.isfinite(values)
            found = _regression(design.rows, rows[there], values[there], priors[metric])
            mean[design.members, metric], deviation[design.members, metric] = found
    return Correction(mean, deviation)


def _regression(
    design: Values, known: Values, values: Values, prior: float
) -> tuple[Values, Values]:
    """Posterior mean and deviation of a new value at each row of `design`."""
    noise = FIRST_NOISE
    precision = np.eye(design.shape[1]) / prior**2
    for _ in range(ROUNDS if len(values) else 1):
        covariance = np.linalg.inv(precision + known.T @ known / noise**2)
        weights = covariance @ (known.T @ values) / noise**2
        if len(values):
            freedom = ((known @ covariance) * known).sum() / noise**2
            left = max(len(values) - freedom, 1.0) + 4.0  # four more of the first guess
            squares = ((values - known @ weights) ** 2).sum() + 4.0 * FIRST_NOISE**2 / 25
            noise = max(LEAST_NOISE, float(np.sqrt(squares / left)))
    unsure = ((design @ np.linalg.cholesky(covariance)) ** 2).sum(axis=1)
    return design @ weights, np.sqrt(noise**2 + unsure)
