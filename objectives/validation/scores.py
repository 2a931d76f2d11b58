"""How far predictions are from measurements, in the figures that tables show."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy.stats import spearmanr

from objectives.validation.points import QUANTITIES, THROUGHPUT
from objectives.validation.prediction import Predicted


@dataclass(frozen=True, slots=True)
class Score:
    """Errors of one quantity over `n` points; an error is predicted / measured - 1, in percent.

    `bias_pct` is the median error with its sign. `pair_median_ape_pct` is the median over the
    (model family, chip) `pairs` of each one's median error. `interval_coverage` is the share of
    points whose measurement lies within the 80 % interval, None where there are no intervals.
    """

    n: int
    median_ape_pct: float
    mape_pct: float
    bias_pct: float
    within_10_pct: float
    within_20_pct: float
    interval_coverage: float | None
    pairs: int
    pair_median_ape_pct: float


def score(predicted: Sequence[Predicted], quantity: str) -> Score | None:
    """The errors of one quantity where it was measured, or None where it never was."""
    having = [p for p in predicted if quantity in p.point.measured and quantity in p.values]
    if not having:
        return None
    errors = np.array([100 * error(p, quantity) for p in having])
    sizes = np.abs(errors)
    pairs: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for p, size in zip(having, sizes.tolist(), strict=True):
        pairs[p.point.setup.pair].append(size)
    return Score(
        n=len(having),
        median_ape_pct=float(np.median(sizes)),
        mape_pct=float(sizes.mean()),
        bias_pct=float(np.median(errors)),
        within_10_pct=float(100 * (sizes <= 10).mean()),
        within_20_pct=float(100 * (sizes <= 20).mean()),
        interval_coverage=_coverage(having, quantity),
        pairs=len(pairs),
        pair_median_ape_pct=float(np.median([np.median(sizes) for sizes in pairs.values()])),
    )


def error(predicted: Predicted, quantity: str) -> float:
    """Predicted / measured - 1."""
    return predicted.values[quantity] / predicted.point.measured[quantity] - 1


def _coverage(having: Sequence[Predicted], quantity: str) -> float | None:
    inside = [
        p.bands[quantity][0] <= p.point.measured[quantity] <= p.bands[quantity][1]
        for p in having
        if quantity in p.bands
    ]
    return float(np.mean(inside)) if inside else None


def scores(predicted: Sequence[Predicted]) -> dict[str, dict[str, Any]]:
    """Every quantity that was measured, by its name."""
    found = {name: score(predicted, name) for name in QUANTITIES}
    return {name: asdict(one) for name, one in found.items() if one is not None}


def rank_correlations(predicted: Iterable[Predicted]) -> dict[str, dict[str, float]]:
    """How well the order of mappings is predicted at equal load, by quantity.

    A sweep is one model, chip, engine, number format and length of requests under one load on
    three mappings or more. Given are the median of Spearman's coefficients over the sweeps, and
    the share of sweeps whose best mapping was told.
    """
    sweeps: defaultdict[tuple[object, ...], dict[object, list[Predicted]]] = defaultdict(dict)
    for p in predicted:
        s = p.point.setup
        key = (s.model, s.hardware, s.engine, s.mode, s.weights, s.speculation, s.workload)
        sweep = (*key, s.input_tokens, s.output_tokens, s.load)
        sweeps[sweep].setdefault(s.mappings, []).append(p)
    found = {}
    for name in ("tpot", THROUGHPUT):
        correlations = [c for one in sweeps.values() if (c := _ranked(one, name)) is not None]
        if correlations:
            found[name] = {
                "sweeps": len(correlations),
                "median_spearman": float(np.median([c for c, _ in correlations])),
                "mean_spearman": float(np.mean([c for c, _ in correlations])),
                "best_found_pct": float(100 * np.mean([best for _, best in correlations])),
            }
    return found


def _ranked(sweep: dict[object, list[Predicted]], quantity: str) -> tuple[float, bool] | None:
    """Spearman's coefficient over the mappings of a sweep, and whether the best one was told."""
    having = [
        [p for p in same if quantity in p.point.measured and quantity in p.values]
        for same in sweep.values()
    ]
    measured = [np.median([p.point.measured[quantity] for p in same]) for same in having if same]
    predicted = [np.median([p.values[quantity] for p in same]) for same in having if same]
    if len(measured) < 3 or len(set(predicted)) == 1 or len(set(measured)) == 1:
        return None
    best = np.argmax if quantity == THROUGHPUT else np.argmin
    told = bool(best(measured) == best(predicted))
    return float(spearmanr(measured, predicted).statistic), told
