"""What remains of the errors of rows that a fit has not seen, and which priors leave the least."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence

import numpy as np

from objectives.calibration.fit import Mask, fitted, pair_weights, remaining
from objectives.calibration.observations import Observations, Values
from objectives.calibration.parameters import CANDIDATES, Strengths

FOLDS = 6
MARGIN = 0.01


def held_out(
    told: Observations, train: Mask, strengths: Strengths, groups: Sequence[Hashable]
) -> Values:
    """log(measured / predicted) [n] of the rows of `train`, each by a fit without its own group.

    `groups` [n] has the group of each row; rows outside `train` are NaN.
    """
    left = np.full(len(groups), np.nan)
    numbers = {group: number for number, group in enumerate(dict.fromkeys(groups))}
    of_row = np.array([numbers[group] for group in groups])
    for number in np.unique(of_row[train]).tolist():
        own = of_row == number
        solved = fitted(told, train & ~own, strengths)
        left[own & train] = remaining(told, solved)[own & train]
    return left


def chosen_strengths(told: Observations, train: Mask) -> Strengths:
    """The candidate whose fits err least on pairs of the training rows that they have not seen.

    Pairs are dealt into a few folds, by size in turn. The first candidate, no fit at all, stays
    unless a later one errs less by a share that chance does not bring.
    """
    pairs = told.pairs()
    sizes = Counter(pair for pair, used in zip(pairs, train.tolist(), strict=True) if used)
    fold = {pair: place % FOLDS for place, (pair, _) in enumerate(sizes.most_common())}
    groups = [fold.get(pair, -1) for pair in pairs]
    weight = told.weight * pair_weights(told, train)

    def error(strengths: Strengths) -> float:
        left = held_out(told, train, strengths, groups)[train]
        return float(np.average(np.abs(np.expm1(-left)).clip(max=1.0), weights=weight[train]))

    best, least = CANDIDATES[0], error(CANDIDATES[0])
    for strengths in CANDIDATES[1:]:
        found = error(strengths)
        if found < (1 - MARGIN) * least:
            best, least = strengths, found
    return best
