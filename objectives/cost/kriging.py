"""Kriging: values at points not measured, from measured points by their distance.

A Gaussian process around the columns' medians (Rasmussen and Williams, Gaussian Processes for
Machine Learning, section 2.2) with a Matern kernel of smoothness 3/2.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from objectives.cost.step_costs import Floats


@dataclass(frozen=True, slots=True)
class Kriged:
    """Values in columns over points: `weights` [points, columns] around `centre` [columns]."""

    points: Floats
    weights: Floats
    centre: Floats
    length: float

    def at(self, asked: Floats) -> Floats:
        """Values [asked, columns] at points [asked, coordinates]."""
        return np.asarray(_kernel(asked, self.points, self.length) @ self.weights + self.centre)

    def surrounds(self, point: Floats) -> bool:
        """Whether a point lies within the range of the measured ones along every coordinate."""
        low, high = self.points.min(axis=0), self.points.max(axis=0)
        return bool(((point >= low) & (point <= high)).all())


def kriged(points: Floats, values: Floats, *, length: float, noise: float) -> Kriged:
    """The process through `values` [points, columns]; a missing (NaN) one is its column's median.

    `length` is the distance over which values stay alike, `noise` the variance of a value around
    the process, as a share of the process' own.
    """
    centre = np.nanmedian(values, axis=0)
    misses = np.where(np.isnan(values), 0.0, values - centre)
    covariance = _kernel(points, points, length) + noise * np.eye(len(points))
    return Kriged(points, np.asarray(cho_solve(cho_factor(covariance), misses)), centre, length)


def _kernel(left: Floats, right: Floats, length: float) -> Floats:
    squares = (left**2).sum(axis=1)[:, None] + (right**2).sum(axis=1) - 2.0 * left @ right.T
    distance = np.sqrt(3.0 * np.maximum(squares, 0.0)) / length
    return np.asarray((1.0 + distance) * np.exp(-distance))
