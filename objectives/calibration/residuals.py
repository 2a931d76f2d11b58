"""The 80 % intervals: quantiles of what is left of rows that a fit has not seen.

What is known of a deployment decides which rows are like it: rows of a pair whose other
configurations were fitted, of a chip fitted with other models only, of a vendor fitted on other
chips only, of a vendor that was not fitted.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from objectives.calibration.fit import Mask, pair_weights
from objectives.calibration.held_out import held_out
from objectives.calibration.observations import Observations, Values
from objectives.calibration.pair_offsets import without_own_configuration
from objectives.calibration.parameters import Strengths
from objectives.uncertainty import is_disaggregated, is_strained
from objectives.validation.prediction import KINDS
from spaces.calibration import Knowledge, Quantity, Residuals

LOW, HIGH = 0.1, 0.9
LEAST_POINTS = 20
# Four fifths of the points are to lie within, yet few large pairs must not decide alone: here a
# pair of n points weighs n^0.8 of them.
INTERVAL_EXPONENT = 0.8
QUANTITIES: tuple[Quantity, ...] = ("tpot", "ttft", "throughput")


def residuals(told: Observations, train: Mask, strengths: Strengths) -> tuple[Residuals, ...]:
    """The intervals that the rows of `train` give; who knows less is never surer."""
    left = left_by_knowledge(told, train, strengths)
    found: list[Residuals] = []
    surer: dict[tuple[Quantity, bool | None, bool | None], Residuals] = {}
    for known, values in left.items():
        for row in _rows(told, train, known, values):
            key = (row.quantity, row.disaggregated, row.strained)
            surer[key] = _at_least_as_wide(row, surer.get(key))
            found.append(surer[key])
    return tuple(found)


def _at_least_as_wide(row: Residuals, other: Residuals | None) -> Residuals:
    if other is None:
        return row
    ends = {"low": min(row.low, other.low), "high": max(row.high, other.high)}
    return row.model_copy(update=ends)


def left_by_knowledge(
    told: Observations, train: Mask, strengths: Strengths
) -> Mapping[Knowledge, Values]:
    """log(measured / predicted) [n] as it is where so much is known; NaN outside `train`."""
    chips = [told.points[place].plan.pools[-1].chip for place in told.point.tolist()]
    vendors = [_vendor(told, place) for place in told.point.tolist()]
    groups: dict[Knowledge, Sequence[Hashable]] = {
        "chip": told.pairs(),
        "vendor": chips,
        "none": vendors,
    }
    left: dict[Knowledge, Values] = {"pair": without_own_configuration(told, train, strengths)}
    for known, group in groups.items():
        left[known] = held_out(told, train, strengths, group)
    return left


def _vendor(told: Observations, place: int) -> str:
    predicted = told.points[place]
    return predicted.site.chips[predicted.plan.pools[-1].chip].vendor


def _rows(told: Observations, train: Mask, known: Knowledge, left: Values) -> Iterator[Residuals]:
    """Those of each quantity, split by mode and by strain where there are points for it.

    Narrower kinds come first; those of every mode stay for the mode that had too few.
    """
    points = [told.points[place] for place in told.point.tolist()]
    strained = np.array([is_strained(p.metrics) for p in points])
    apart = np.array([is_disaggregated(p.plan) for p in points])
    weights = pair_weights(told, train, INTERVAL_EXPONENT)
    for quantity in QUANTITIES:
        of_kind = np.array([KINDS[name] == quantity for name in told.quantity]) & train
        for mode in (False, True, None):
            rows = of_kind if mode is None else of_kind & (apart == mode)
            if mode is not None and rows.sum() < LEAST_POINTS:
                continue
            for strain, part in _by_strain(rows, strained):
                yield _row((quantity, known, mode, strain), left[part], weights[part])


def _by_strain(rows: Mask, strained: Mask) -> Iterator[tuple[bool | None, Mask]]:
    parts = {one: rows & (strained == one) for one in (False, True)}
    if all(part.sum() >= LEAST_POINTS for part in parts.values()):
        yield from parts.items()
    elif rows.any():
        yield None, rows


def _row(
    kind: tuple[Quantity, Knowledge, bool | None, bool | None], left: Values, weights: Values
) -> Residuals:
    quantity, known, disaggregated, strained = kind
    low, high = weighted_quantiles(left, weights, (LOW, HIGH))
    return Residuals(
        quantity=quantity,
        knowledge=known,
        disaggregated=disaggregated,
        strained=strained,
        low=float(f"{np.exp(low):.3g}"),
        high=float(f"{np.exp(high):.3g}"),
        points=len(left),
    )


def weighted_quantiles(
    values: Values, weights: Values, levels: Sequence[float]
) -> npt.NDArray[np.float64]:
    """Quantiles of values that count by their weights, linear between the middles of their steps.

    >>> weighted_quantiles(np.array([1.0, 2.0, 3.0]), np.array([1.0, 1.0, 1.0]), [0.5]).tolist()
    [2.0]
    """
    order = np.argsort(values)
    steps = np.cumsum(weights[order])
    middles = (steps - weights[order] / 2) / steps[-1]
    found: npt.NDArray[np.float64] = np.interp(levels, middles, values[order])
    return found
