"""What remains of the errors of rows that a fit has not seen, and which priors leave the least."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence

import numpy as np

from objectives.calibration.fit import Mask, fitted, remaining
from objectives.calibration.observations import Observations, Values
from objectives.calibration.parameters import CANDIDATES, Strengths

FOLDS = 6


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
    """The simplest candidate whose fits err as little on pairs they have not seen as any other's.

    Candidates stand from simple to rich, the first is no fit at all. Errors are those of rows, as
    they are published; as little is what lies within one standard error of the difference from the
    least, over pairs (Breiman et al., Classification and Regression Trees, 1984, section 3.4.3):
    there are few pairs, and a richer fit wins on some of them by chance. Pairs are dealt into
    folds, by size in turn.
    """
    pairs, train = told.pairs(), train & (told.weight > 0)
    sizes = Counter(pair for pair, used in zip(pairs, train.tolist(), strict=True) if used)
    order = {pair: place for place, (pair, _) in enumerate(sizes.most_common())}
    number = np.array([order.get(pair, -1) for pair in pairs])
    groups = np.where(number < 0, -1, number % FOLDS).tolist()

    def totals(of_rows: Values) -> Values:
        return np.bincount(number[train], of_rows, len(order)).astype(np.float64)

    def errors(strengths: Strengths) -> Values:
        left = held_out(told, train, strengths, groups)[train]
        of_rows = np.abs(np.expm1(-left)).clip(max=1.0)
        return totals(told.weight[train] * of_rows)

    of_pairs = [errors(strengths) for strengths in CANDIDATES]
    least = min(of_pairs, key=lambda one: float(one.sum()))
    return next(
        strengths
        for strengths, one in zip(CANDIDATES, of_pairs, strict=True)
        if is_as_good(one, least, totals(told.weight[train]))
    )


def is_as_good(errors: Values, least: Values, weights: Values) -> bool:
    """Whether a mean over groups lies within one standard error of another, group by group.

    `errors` and `least` [groups] are weighted sums of errors, `weights` [groups] the weights'. The
    standard error is that of a ratio of sums over groups (Cochran, Sampling Techniques, 1977).
    """
    more = errors - least
    mean = more.sum() / weights.sum()
    count = len(weights)
    spread = np.sqrt(count / max(1, count - 1) * np.sum((more - mean * weights) ** 2))
    return bool(mean <= spread / weights.sum())
