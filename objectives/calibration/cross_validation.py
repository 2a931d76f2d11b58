"""Predictions of points by calibrations that have not seen their (model family, chip) pair."""

from __future__ import annotations

from collections.abc import Sequence

from objectives.calibration.assemble import Study, calibration_of_rows, studied
from objectives.validation import Point, Predictions, Progress, predict_all


def cross_validated(points: Sequence[Point], progress: Progress | None = None) -> Predictions:
    """Every point predicted, with its interval, by a fit to the points of all other pairs.

    Each fold chooses its own priors and its own intervals, from its own training points alone.
    The held-out points are simulated anew under the fold's calibration.
    """
    return cross_validated_study(points, studied(points, progress), progress)


def cross_validated_study(
    points: Sequence[Point], study: Study, progress: Progress | None = None
) -> Predictions:
    """The same where the points of the fit have been simulated already."""
    folds = [fold_of(points, pair, study, progress) for pair in _pairs(points)]
    return Predictions(
        predicted=tuple(p for fold in folds for p in fold.predicted),
        left_out=tuple(p for fold in folds for p in fold.left_out),
        refused=tuple(p for fold in folds for p in fold.refused),
    )


def fold_of(
    points: Sequence[Point], pair: tuple[str, str], study: Study, progress: Progress | None
) -> Predictions:
    """The points of one pair under a calibration without it."""
    own = [point for point in points if point.setup.pair == pair]
    train = study.rows_of(lambda p: p.point.setup.pair != pair)
    calibration = calibration_of_rows(study.told, train, pair_offsets=False)
    return predict_all(own, progress, calibration)


def _pairs(points: Sequence[Point]) -> list[tuple[str, str]]:
    return list(dict.fromkeys(point.setup.pair for point in points))
