"""Offsets of one model family on one chip under one engine in one format, from its own points.

Much of what remains is one stack that is slower or faster on one model and chip than others are.
A few points of it tell by how much; the offset is their median in logarithm, shrunk towards none.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from objectives.calibration.fit import Mask, fitted, remaining
from objectives.calibration.observations import Observations, Values
from objectives.calibration.parameters import Strengths, weights_of

# The points at which half of the median counts. One engine's release may be off on a few.
HALF_POINTS = 2.0
# Points half of which are farther than this (in logarithm: a factor of 1.5) from their median say
# no one factor: something else than the stack differs between their runs.
MOST_SCATTER = 0.4
FOLDS = 5

Stack = tuple[str, str, str, str]


def stacks(told: Observations) -> list[Stack]:
    """Family, chip, engine and format of each row."""
    found: list[Stack] = []
    for place in told.point.tolist():
        p = told.points[place]
        found.append((p.point.setup.family, p.plan.pools[-1].chip, p.plan.engine, weights_of(p)))
    return found


def stack_offsets(told: Observations, train: Mask, left: Values) -> dict[Stack, tuple[float, int]]:
    """log of the offset of each stack and the points it rests on, from what TPOT leaves.

    A stack whose points scatter beyond one factor has none.
    """
    return {
        stack: (float(np.median(own)) * len(own) / (len(own) + HALF_POINTS), len(own))
        for stack, own in _left_of_stacks(told, train, left).items()
        if scatter(own) <= MOST_SCATTER
    }


def scattered_stacks(told: Observations, train: Mask, left: Values) -> dict[Stack, int]:
    """The points of each stack that has no offset because they scatter too widely."""
    found = _left_of_stacks(told, train, left).items()
    return {stack: len(own) for stack, own in found if scatter(own) > MOST_SCATTER}


def scatter(own: Values) -> float:
    """Median distance from the median."""
    return float(np.median(np.abs(own - np.median(own))))


def _left_of_stacks(told: Observations, train: Mask, left: Values) -> dict[Stack, Values]:
    own: defaultdict[Stack, list[float]] = defaultdict(list)
    of_row = stacks(told)
    for row in np.flatnonzero(train).tolist():
        if told.quantity[row] == "tpot":
            own[of_row[row]].append(float(left[row]))
    return {stack: np.array(values) for stack, values in own.items()}


def without_own_configuration(told: Observations, train: Mask, strengths: Strengths) -> Values:
    """log(measured / predicted) [n] with offsets from other configurations of the same stack."""
    left = np.full(len(told.log_ratio), np.nan)
    configurations = [told.points[place].point.config for place in told.point.tolist()]
    number = {name: i % FOLDS for i, name in enumerate(sorted(set(configurations)))}
    fold = np.array([number[name] for name in configurations])
    of_row, stretched = stacks(told), stretch(told)
    for one in range(FOLDS):
        others, own = train & (fold != one), train & (fold == one)
        first = remaining(told, fitted(told, others, strengths))
        offsets = stack_offsets(told, others, first)
        shift = np.array([offsets.get(stack, (0.0, 0))[0] for stack in of_row])
        left[own] = (first - shift * stretched)[own]
    return left


def stretch(told: Observations) -> Values:
    """How the log of each row's quantity moves with the log of all step times [n]."""
    family = np.array([level == "family" for level, _ in told.names])
    moved: Values = told.jacobian[:, family].sum(axis=1)
    return moved
