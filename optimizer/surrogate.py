"""What the analytic estimate is off by, learned from the simulations of the study.

A Bayesian linear regression of log(simulated / estimated) on what a plan is made of, one for each
topology and metric. With few simulations it stays near zero and says that it is unsure.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

# What estimates are off by before anything is known, as the standard deviation of a logarithm:
# for a plan by itself, and by each of its features.
FIRST_NOISE = 0.15
PRIOR = 0.1
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


def corrections(candidates: Plans, told: Plans, residuals: Values) -> Correction:
    """The correction of the candidates from the `residuals` [t, metric] of the `told` plans [t].

    Residuals may be nan; those of a group are learned from one another alone.
    """
    shape = (len(candidates.groups), residuals.shape[1])
    mean, deviation = np.zeros(shape), np.zeros(shape)
    for group in np.unique(candidates.groups):
        members = np.flatnonzero(candidates.groups == group)
        known = told.groups == group
        design = _standardized(candidates.features[members], told.features[known])
        for metric in range(shape[1]):
            values = residuals[known, metric]
            there = np.isfinite(values)
            found = _regression(design[0], design[1][there], values[there])
            mean[members, metric], deviation[members, metric] = found
    return Correction(mean, deviation)


def _standardized(features: Values, known: Values) -> tuple[Values, Values]:
    """Both with columns of mean 0 and deviation 1 over the candidates, and a column of ones."""
    spread = features.std(axis=0)
    kept = spread > 1e-9
    centre, scale = features[:, kept].mean(axis=0), spread[kept]
    ones = np.ones((len(features), 1))
    return (
        np.hstack([ones, (features[:, kept] - centre) / scale]),
        np.hstack([ones[: len(known)], (known[:, kept] - centre) / scale]),
    )


def _regression(design: Values, known: Values, values: Values) -> tuple[Values, Values]:
    """Posterior mean and deviation of a new value at each row of `design`."""
    noise = FIRST_NOISE
    precision = np.eye(design.shape[1]) / PRIOR**2
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
