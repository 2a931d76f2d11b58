"""By how much short runs are off, learned from the plans that were simulated both ways.

A Gaussian process of log(whole / short) with a constant mean and a squared-exponential kernel of
one length (Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006, chapter 2).
Length and share of noise are those of the largest likelihood on a small grid (equation 5.8, with
the variance in closed form). Deviations are widened by what predicting each known plan from the
others shows to be missing (equations 5.10 to 5.12).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_factor, cho_solve
from scipy.spatial.distance import cdist

Values = npt.NDArray[np.float64]

LENGTHS = (0.5, 1.0, 2.0, 4.0)
NOISE_SHARES = (0.001, 0.01, 0.1, 0.5)
# The least deviation of a logarithm: two runs of the same length are no more alike.
LEAST_DEVIATION = 0.003


@dataclass(frozen=True)
class Prediction:
    """Mean and standard deviation of log(whole / short), one for each plan asked about [n]."""

    mean: Values
    deviation: Values


def predicted(known: Values, residuals: Values, asked: Values) -> Prediction:
    """What the `residuals` [k] of plans `known` [k, feature] say of those `asked` [n, feature].

    At least two plans must be known. Features are scaled by their spread over the known plans.
    """
    centre, spread = known.mean(axis=0), known.std(axis=0)
    scale = np.where(spread > 1e-9, spread, 1.0)
    inputs, questions = (known - centre) / scale, (asked - centre) / scale
    fits = [_Fit.of(inputs, residuals, *at) for at in product(LENGTHS, NOISE_SHARES)]
    best = max(fits, key=lambda fit: fit.log_likelihood)
    return best.at(questions)


@dataclass(frozen=True)
class _Fit:
    """The process at one length and share of noise; `inverse` is that of the correlations."""

    inputs: Values
    length: float
    noise: float
    inverse: Values
    mean: float
    weights: Values
    variance: float
    log_likelihood: float

    @classmethod
    def of(cls, inputs: Values, values: Values, length: float, noise: float) -> _Fit:
        count = len(values)
        matrix = _correlation(inputs, inputs, length) + noise * np.eye(count)
        factor = cho_factor(matrix, lower=True)
        inverse = cho_solve(factor, np.eye(count))
        mean = float((inverse @ values).sum() / inverse.sum())
        weights = inverse @ (values - mean)
        variance = max(float((values - mean) @ weights) / count, LEAST_DEVIATION**2)
        half_log_determinant = float(np.log(np.diag(factor[0])).sum())
        likelihood = -0.5 * count * float(np.log(variance)) - half_log_determinant
        return cls(inputs, length, noise, inverse, mean, weights, variance, likelihood)

    def at(self, questions: Values) -> Prediction:
        """The prediction of a new simulation, its own noise included."""
        near = _correlation(questions, self.inputs, self.length)
        explained = np.einsum("nk,kl,nl->n", near, self.inverse, near)
        variance = self.variance * np.maximum(1.0 + self.noise - explained, self.noise)
        deviation = np.sqrt(variance) * self._widening()
        return Prediction(self.mean + near @ self.weights, np.maximum(deviation, LEAST_DEVIATION))

    def _widening(self) -> float:
        """Root mean square of the errors, in deviations, of each known plan told by the others."""
        own = np.diag(self.inverse)
        errors = self.weights / np.sqrt(own * self.variance)
        return max(1.0, float(np.sqrt((errors**2).mean())))


def _correlation(one: Values, other: Values, length: float) -> Values:
    squares = cdist(one, other, "sqeuclidean") / one.shape[1]
    found: Values = np.exp(-0.5 * squares / length**2)
    return found
