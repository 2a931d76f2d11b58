"""By how much short runs are off, learned from the plans that were simulated both ways.

A Gaussian process of log(whole / short) with a constant mean and a squared-exponential kernel of
one length (Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006, chapter 2).
Length and share of noise are those of the largest likelihood on a small grid (equation 5.8, with
the variance in closed form). Deviations are widened by what predicting each known plan from the
others shows to be missing (equations 5.10 to 5.12).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np
import numpy.typing as npt
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


@dataclass(frozen=True)
class ErrorModel:
    """What the plans known so far tell of others."""

    centre: Values
    scale: Values
    fit: _Fit

    @classmethod
    def of(cls, known: Values, residuals: Values) -> ErrorModel:
        """Learned from the `residuals` [k] of at least two plans of some features [k, feature].

        Features are scaled by their spread over the known plans.
        """
        centre, spread = known.mean(axis=0), known.std(axis=0)
        scale = np.where(spread > 1e-9, spread, 1.0)
        inputs = (known - centre) / scale
        spectra = [(at, np.linalg.eigh(_correlation(inputs, inputs, at))) for at in LENGTHS]
        fits = [
            _Fit.of(inputs, residuals, length, noise, spectrum)
            for (length, spectrum), noise in product(spectra, NOISE_SHARES)
        ]
        return cls(centre, scale, max(fits, key=lambda fit: fit.log_likelihood))

    def at(self, asked: Values) -> Prediction:
        """What whole runs of other plans [n, feature] would be off by."""
        return self.fit.at((asked - self.centre) / self.scale)


@dataclass(frozen=True)
class _Fit:
    """The process at one length and share of noise; `vectors` [k, k] and `precisions` [k] make the
    inverse of the correlations, noise included.
    """

    inputs: Values
    length: float
    noise: float
    vectors: Values
    precisions: Values
    mean: float
    weights: Values
    variance: float
    log_likelihood: float

    @classmethod
    def of(
        cls,
        inputs: Values,
        values: Values,
        length: float,
        noise: float,
        spectrum: tuple[Values, Values],
    ) -> _Fit:
        eigenvalues, vectors = spectrum
        precisions = 1.0 / (np.maximum(eigenvalues, 0.0) + noise)
        ones, turned = vectors.sum(axis=0), values @ vectors
        mean = float((ones * precisions) @ turned / ((ones * precisions) @ ones))
        weights = vectors @ (precisions * (turned - mean * ones))
        count = len(values)
        variance = max(float((values - mean) @ weights) / count, LEAST_DEVIATION**2)
        likelihood = 0.5 * float(np.log(precisions).sum()) - 0.5 * count * float(np.log(variance))
        return cls(inputs, length, noise, vectors, precisions, mean, weights, variance, likelihood)

    def at(self, questions: Values) -> Prediction:
        """The prediction of a new simulation, its own noise included."""
        near = _correlation(questions, self.inputs, self.length)
        explained = ((near @ self.vectors) ** 2) @ self.precisions
        variance = self.variance * np.maximum(1.0 + self.noise - explained, self.noise)
        deviation = np.sqrt(variance) * self.widening
        return Prediction(self.mean + near @ self.weights, np.maximum(deviation, LEAST_DEVIATION))

    @cached_property
    def widening(self) -> float:
        """Root mean square of the errors, in deviations, of each known plan told by the others."""
        own = (self.vectors**2) @ self.precisions
        errors = self.weights / np.sqrt(own * self.variance)
        return max(1.0, float(np.sqrt((errors**2).mean())))


def _correlation(one: Values, other: Values, length: float) -> Values:
    squares = cdist(one, other, "sqeuclidean") / one.shape[1]
    found: Values = np.exp(-0.5 * squares / length**2)
    return found
