"""A validation as one document: overall and by group, with what was left out and refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from objectives.validation.points import Point, PointsFile
from objectives.validation.prediction import Predictions, Unpredicted
from objectives.validation.scores import rank_correlations, scores
from spaces.calibration import Calibration
from spaces.errors import InputError, did_you_mean

CONCURRENCIES = (4, 16, 64, 256, 1024)


def _load_class(point: Point) -> str:
    users = point.setup.load.concurrency
    if users is None:
        return "open loop"
    bounds = [0, *CONCURRENCIES]
    for low, high in zip(bounds, CONCURRENCIES, strict=False):
        if users <= high:
            return f"{low + 1} to {high} users"
    return f"over {CONCURRENCIES[-1]} users"


GROUPINGS: dict[str, Callable[[Point], str]] = {
    "model": lambda point: point.setup.model,
    "family": lambda point: point.setup.family,
    "chip": lambda point: point.setup.hardware,
    "engine": lambda point: point.setup.engine,
    "mode": lambda point: point.setup.mode,
    "precision": lambda point: point.setup.weights or "not stated",
    "speculation": lambda point: point.setup.speculation or "not stated",
    "load": _load_class,
    "workload": lambda point: point.setup.workload or "not stated",
    "image": lambda point: point.image or "not stated",
}


@dataclass(frozen=True, slots=True)
class Validation:
    """The points of a file and what was predicted of them; how, for the tables."""

    file: PointsFile
    grades: tuple[str, ...]
    predictions: Predictions
    cross_validated: bool = False
    calibration: Calibration | None = None

    @property
    def in_sample(self) -> bool:
        """Whether the points were among those that the calibration was fitted to."""
        data = self.calibration.data if self.calibration else None
        return data is not None and data.sha256 == self.file.sha256

    @property
    def how(self) -> str:
        """In words, how far the predictions had seen what they are held against."""
        if self.cross_validated:
            return "each pair of model family and chip predicted by a fit to all other pairs"
        if self.in_sample:
            return "IN SAMPLE: the calibration was fitted to these points; use --cross-validate"
        return "predicted under a calibration fitted to other points"


def check_groupings(names: Iterable[str]) -> tuple[str, ...]:
    """The names of `--by`, which must be known."""
    wanted = tuple(name.strip() for name in names)
    for name in wanted:
        if name not in GROUPINGS:
            raise InputError(
                "points are grouped by known properties",
                key="--by",
                value=name,
                remedy=did_you_mean(name, GROUPINGS),
            )
    return wanted


def document(told: Validation, by: Sequence[str] = ()) -> dict[str, Any]:
    """Everything there is to say, as one JSON document.

    `rows` were read from the file and `n` of them are to be answered: those of the wanted grade
    less `left_out`. `n`, `answered` and the counts by reason are rows; scores are over points.
    """
    p = told.predictions
    return {
        "points": {"file": told.file.name, "sha256": told.file.sha256, "rows": told.file.rows},
        "grades": list(told.grades),
        "cross_validated": told.cross_validated,
        "in_sample": told.in_sample,
        "how": told.how,
        "left_out": _by_reason(p.left_out),
        "overall": summary(p, told.file.unread)
        | {"rank_correlation": rank_correlations(p.predicted)},
        "groups": [
            {"group": dict(zip(by, key, strict=True))} | summary(part)
            for key, part in groups(p, by)
        ]
        if by
        else [],
    }


def summary(part: Predictions, unread: dict[str, int] | None = None) -> dict[str, Any]:
    """Rows answered and refused, and the scores of what was predicted."""
    refused = Counter(_by_reason(part.refused)) + Counter(unread or {})
    answered = sum(p.point.rows for p in part.predicted)
    n = answered + refused.total()
    return {
        "n": n,
        "answered": answered,
        "answered_pct": 100 * answered / n if n else 0.0,
        "refused": dict(sorted(refused.items(), key=lambda item: (-item[1], item[0]))),
        **scores(part.predicted),
    }


def groups(whole: Predictions, by: Sequence[str]) -> list[tuple[tuple[str, ...], Predictions]]:
    """The predictions by the values of some properties, in the order of those values."""

    def key(point: Point) -> tuple[str, ...]:
        return tuple(GROUPINGS[name](point) for name in by)

    def place(values: tuple[str, ...]) -> list[tuple[int, str]]:
        """Numbers that open a value count as numbers: 5 to 16 users come before 17 to 64."""
        return [(int(v.split()[0]) if v.split()[0].isdigit() else 10**9, v) for v in values]

    keys = {key(one.point) for one in whole.predicted}
    keys |= {key(one.point) for one in whole.refused}
    return [
        (
            values,
            Predictions(
                tuple(p for p in whole.predicted if key(p.point) == values),
                (),
                tuple(p for p in whole.refused if key(p.point) == values),
            ),
        )
        for values in sorted(keys, key=place)
    ]


def _by_reason(points: Iterable[Unpredicted]) -> dict[str, int]:
    rows: Counter[str] = Counter()
    for one in points:
        rows[one.reason] += one.point.rows
    return dict(rows)
