"""Measured points as a linear problem in the logarithms of constants and offsets.

A prediction is nearly affine in each small time it is made of, so one simulation with a constant
raised tells what moves when it is moved. Offsets stretch the time of every step: TPOT in full,
TTFT but for the front end, the throughput of a closed loop inversely.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from objectives.calibration.parameters import (
    CANDIDATES,
    CONSTANTS,
    LEVELS,
    Constant,
    constant_value,
    groups_of,
)
from objectives.validation import Predicted
from objectives.validation.points import THROUGHPUT
from objectives.validation.prediction import KINDS

Values = npt.NDArray[np.float64]
RAISED = 1.3
# What an error of a quantity weighs, and from which size on it counts linearly (in logarithm).
QUANTITY_WEIGHTS = {"tpot": 1.0, THROUGHPUT: 0.5, "ttft": 0.2}
SCALES = {"tpot": 0.15, THROUGHPUT: 0.15, "ttft": 0.4}


@dataclass(frozen=True, slots=True)
class Observations:
    """Rows of the problem; `n` of them, one for each measured quantity of each point.

    `log_ratio` [n] is log(measured / predicted), `jacobian` [n, parameters] how log predicted
    moves with the parameters, `point` [n] the place of the point. `weight` [n] and `scale` [n]
    are for the loss. Parameters are named by `names`; those of a level stand together.
    """

    points: tuple[Predicted, ...]
    names: tuple[tuple[str, str], ...]
    log_ratio: Values
    jacobian: Values
    point: npt.NDArray[np.int64]
    quantity: tuple[str, ...]
    weight: Values
    scale: Values

    def pairs(self) -> list[tuple[str, str]]:
        """Model family and chip of each row."""
        return [self.points[place].point.setup.pair for place in self.point.tolist()]


def observations(
    base: Sequence[Predicted],
    raised: Mapping[str, Sequence[Predicted]],
    fitted: Sequence[bool] = (),
) -> Observations:
    """The problem around the predictions `base`.

    `raised` has, for each constant that needs it, predictions of the same points with the figures
    of all engines `RAISED` times as large. Points that are not `fitted` (left out, all are) weigh
    nothing: their rows only tell what remains.
    """
    names = _names(base)
    rows, jacobian, weights, scales, places, quantities = [], [], [], [], [], []
    slopes = {path: _slopes(base, other) for path, other in raised.items()}
    groups = {level: groups_of(level, base) for level in LEVELS}
    for place, predicted in enumerate(base):
        for quantity, measured in predicted.point.measured.items():
            if quantity not in QUANTITY_WEIGHTS or quantity not in predicted.values:
                continue
            rows.append(math.log(measured / predicted.values[quantity]))
            jacobian.append(_row(place, predicted, quantity, names, slopes, groups))
            weights.append(QUANTITY_WEIGHTS[quantity] if not fitted or fitted[place] else 0.0)
            scales.append(SCALES[quantity])
            places.append(place)
            quantities.append(quantity)
    return Observations(
        points=tuple(base),
        names=names,
        log_ratio=np.array(rows),
        jacobian=np.array(jacobian).reshape(len(rows), len(names)),
        point=np.array(places, dtype=np.int64),
        quantity=tuple(quantities),
        weight=np.array(weights),
        scale=np.array(scales),
    )


def _names(points: Sequence[Predicted]) -> tuple[tuple[str, str], ...]:
    """(level or `constants`, value or path) of each parameter."""
    engines = sorted({p.plan.engine for p in points})
    constants = [("constants", c.of(e)) for c in CONSTANTS for e in engines]
    used = {level for strengths in CANDIDATES for level in strengths} & LEVELS.keys()
    offsets = [(lvl, v) for lvl in sorted(used) for v in sorted(set(groups_of(lvl, points))) if v]
    return (*constants, *offsets)


def _slopes(base: Sequence[Predicted], raised: Sequence[Predicted]) -> list[dict[str, float]]:
    """d log quantity / d log constant of each point."""
    step = math.log(RAISED)
    return [
        {
            name: math.log(other.values[name] / value) / step
            for name, value in one.values.items()
            if name in other.values and value > 0 and other.values[name] > 0
        }
        for one, other in zip(base, raised, strict=True)
    ]


def _row(
    place: int,
    predicted: Predicted,
    quantity: str,
    names: tuple[tuple[str, str], ...],
    slopes: Mapping[str, list[dict[str, float]]],
    groups: Mapping[str, list[str]],
) -> list[float]:
    stretched = _stretched(predicted, quantity)
    own = {c.of(predicted.plan.engine): c for c in CONSTANTS}
    row = []
    for level, value in names:
        if level != "constants":
            row.append(stretched if groups[level][place] == value else 0.0)
        elif value not in own:
            row.append(0.0)
        elif own[value].in_ttft:
            row.append(_frontend_slope(predicted, quantity, own[value]))
        else:
            row.append(slopes[own[value].path][place].get(quantity, 0.0))
    return row


def _frontend_slope(predicted: Predicted, quantity: str, constant: Constant) -> float:
    """The front end is a part of TTFT; a closed loop sends that much less often for it."""
    front_ms = constant_value(constant.of(predicted.plan.engine))
    if KINDS[quantity] == "ttft":
        return front_ms / predicted.values[quantity]
    closed = predicted.plan.load is not None and predicted.plan.load.concurrency is not None
    if quantity == THROUGHPUT and closed:
        return -front_ms / predicted.metrics["e2e_mean_ms"]
    return 0.0


def _stretched(predicted: Predicted, quantity: str) -> float:
    """What an offset on all steps does; an open loop that keeps up goes on at its rate."""
    frontend = next(c for c in CONSTANTS if c.in_ttft)
    front = _frontend_slope(predicted, quantity, frontend)
    if quantity == THROUGHPUT:
        closed = predicted.plan.load is not None and predicted.plan.load.concurrency is not None
        return -1.0 - front if closed else 0.0
    return 1.0 - front
