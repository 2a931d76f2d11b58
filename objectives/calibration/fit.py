"""The fit: least squares on logarithms, large errors counted linearly, priors on everything."""

from __future__ import annotations

from collections import Counter

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_factor, cho_solve

from objectives.calibration.observations import Observations, Values
from objectives.calibration.parameters import CONSTANTS, Strengths

Mask = npt.NDArray[np.bool_]
ROUNDS = 12
# A pair of n points weighs n^0.35 of them: points of one pair share what is wrong about it.
PAIR_EXPONENT = 0.35


def fitted(told: Observations, train: Mask, strengths: Strengths) -> Values:
    """Parameters [p] in logarithm, 0 = as the cost model has it, from the rows of `train`.

    `strengths` has the priors' standard deviations by level, and for `constants` a factor on their
    own; parameters of a level that is not named stay 0. Minimizes

        sum of w s^2 (2 sqrt(1 + (e / s)^2) - 2) / s^2 + sum of (x / sd)^2

    with e = log(measured / predicted) - J x, by iteratively reweighted least squares (soft L1).
    Rows of no weight are left out.
    """
    solved = np.zeros(len(told.names))
    sd, train = _prior(told, strengths), train & (told.weight > 0)
    free = sd > 0
    if not free.any() or not train.any():
        return solved
    jacobian, log_ratio = told.jacobian[np.ix_(train, free)], told.log_ratio[train]
    scale = told.scale[train]
    weight = (told.weight * pair_weights(told, train))[train] / scale**2
    prior = np.diag(1 / sd[free] ** 2)
    x = np.zeros(int(free.sum()))
    for _ in range(ROUNDS):
        error = log_ratio - jacobian @ x
        tempered = weight / np.sqrt(1 + (error / scale) ** 2)
        normal = jacobian.T @ (jacobian * tempered[:, None]) + prior
        x = cho_solve(cho_factor(normal), jacobian.T @ (tempered * log_ratio))
    solved[free] = x
    return solved


def remaining(told: Observations, solved: Values) -> Values:
    """log(measured / predicted) [n] under fitted parameters."""
    left: Values = told.log_ratio - told.jacobian @ solved
    return left


def _prior(told: Observations, strengths: Strengths) -> Values:
    own = {constant.path: constant.log_sd for constant in CONSTANTS}
    sd = []
    for level, value in told.names:
        strength = strengths.get(level, 0.0)
        sd.append(strength * (own[_path(value)] if level == "constants" else 1.0))
    return np.array(sd)


def _path(value: str) -> str:
    """The constant behind the path of one engine."""
    return next(
        c.path
        for c in CONSTANTS
        if value.startswith(c.path.partition("{")[0]) and value.endswith(c.path.partition("}")[2])
    )


def pair_weights(told: Observations, train: Mask, exponent: float = PAIR_EXPONENT) -> Values:
    """n^exponent / n for each row of a pair with n points in the training rows."""
    pairs = told.pairs()
    seen = {
        (place, pair)
        for place, pair, used in zip(told.point.tolist(), pairs, train.tolist(), strict=True)
        if used
    }
    counts = Counter(pair for _, pair in seen)
    return np.array([max(1, counts[pair]) ** (exponent - 1) for pair in pairs])
