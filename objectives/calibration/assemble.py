"""From measured points to a calibration document."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from objectives.calibration.fit import Mask, fitted, remaining
from objectives.calibration.held_out import chosen_strengths
from objectives.calibration.observations import RAISED, Observations, Values, observations
from objectives.calibration.pair_offsets import Stack, scattered_stacks, stack_offsets
from objectives.calibration.parameters import CONSTANTS, Strengths, constant_value
from objectives.calibration.residuals import residuals
from objectives.validation import (
    Point,
    PointsFile,
    Predicted,
    Predictions,
    Progress,
    predict_all,
)
from objectives.validation.plausible import more_than_the_users
from objectives.validation.points import THROUGHPUT
from spaces.calibration import Calibration, MeasuredPair, Offset, PointsRead
from spaces.errors import InputError

# Beyond so many users a simulation takes long and tells a fit of constants little that fewer do
# not; how far off predictions are it tells as well as any.
MOST_USERS = 256
UNCALIBRATED = Calibration()


@dataclass(frozen=True, slots=True)
class Study:
    """Points as an uncalibrated cost model predicts them: the problem they pose.

    `left_out` says in sentences which points are not among them.
    """

    told: Observations
    left_out: tuple[str, ...] = ()

    def rows_of(self, wanted: Callable[[Predicted], bool]) -> Mask:
        """The rows whose point is wanted."""
        points = np.array([wanted(p) for p in self.told.points], dtype=np.bool_)
        found: Mask = points[self.told.point]
        return found


def studied(
    points: Sequence[Point],
    progress: Progress | None = None,
    measured: Calibration = UNCALIBRATED,
) -> Study:
    """Simulate the points, and those that constants are fitted to once more for each constant.

    `measured` holds constants that stand already, of operators and of single chips. Raises
    `InputError` where no point can be predicted.
    """
    reasons = [(point, _unfit(point)) for point in points]
    found = predict_all([p for p, why in reasons if why is None], progress, measured)
    others = [why for _, why in reasons if why is not None]
    base, left_out = found.predicted, _left_out(others, found)
    light = [p.point for p in base if _is_light(p)]
    if heavy := len(base) - len(light):
        note = f"{heavy} of more than {MOST_USERS} users: no constants are fitted to them"
        left_out = (*left_out, note)
    if not light:
        raise InputError(
            "a fit needs points that can be predicted",
            value="; ".join(left_out) or "none",
            remedy="docs/calibration.md says what a point needs",
        )

    def again(path_of: Callable[[str], str]) -> list[Predicted]:
        told = iter(predict_all(light, progress, _raised(base, path_of, measured)).predicted)
        return [next(told) if _is_light(p) else p for p in base]

    raised = {c.path: again(c.of) for c in CONSTANTS if not c.in_ttft}
    return Study(observations(base, raised, [_is_light(p) for p in base]), left_out)


def _is_light(predicted: Predicted) -> bool:
    return (predicted.point.setup.load.concurrency or 1) <= MOST_USERS


def _unread(file: PointsFile) -> tuple[str, ...]:
    """How many rows of a file were no points, by reason."""
    return tuple(f"{count} rows not read: {reason}" for reason, count in file.unread.items())


def _unfit(point: Point) -> str | None:
    """Why a fit does not use a point, or None."""
    per_chip = point.measured.get(THROUGHPUT)
    rate = None if per_chip is None else per_chip * point.setup.chips
    return more_than_the_users(point.measured, rate, point.setup.load)


def _left_out(others: Sequence[str], found: Predictions) -> tuple[str, ...]:
    """How many points a fit does not use, by reason."""
    refused = [one.reason for one in (*found.left_out, *found.refused)]
    reasons = Counter([*others, *refused])
    return tuple(f"{count} left out: {reason}" for reason, count in reasons.items())


def _raised(
    points: Iterable[Predicted], path_of: Callable[[str], str], measured: Calibration
) -> Calibration:
    engines = {p.plan.engine for p in points}
    raised = {path_of(e): RAISED * constant_value(path_of(e)) for e in sorted(engines)}
    return Calibration(constants=measured.constants | raised)


def calibrated(
    file: PointsFile,
    *,
    command: str,
    fitted: str,
    pair_offsets: bool = True,
    measured: Calibration = UNCALIBRATED,
    progress: Progress | None = None,
) -> Calibration:
    """The calibration that all points of a file give; `command` and the date say how and when.

    Its constants come on top of those that are `measured` already. Raises `InputError` where no
    point can be predicted, with the reasons.
    """
    if not file.points:
        raise InputError(
            "a fit needs points that can be read",
            where=file.name,
            value="; ".join(_unread(file)) or f"none of {file.rows} rows has a grade asked for",
            remedy="docs/calibration.md says what a point needs",
        )
    found = calibrated_study(
        studied(file.points, progress, measured),
        file,
        command=command,
        fitted=fitted,
        pair_offsets=pair_offsets,
    )
    constants = measured.constants | found.constants
    offsets = (*measured.offsets, *found.offsets)
    update = {"constants": constants, "offsets": offsets, "tables": measured.tables}
    return found.model_copy(update=update)


def calibrated_study(
    study: Study, file: PointsFile, *, command: str, fitted: str, pair_offsets: bool = True
) -> Calibration:
    """The same where the points have been simulated already."""
    found = calibration_of_rows(
        study.told, study.rows_of(lambda _: True), pair_offsets=pair_offsets
    )
    data = PointsRead(file=file.name, sha256=file.sha256, points=len(study.told.points))
    notes = (*found.notes, *_unread(file), *study.left_out)
    told = {"command": command, "fitted": fitted, "data": data, "notes": notes}
    return found.model_copy(update=told)


def calibration_of_rows(told: Observations, train: Mask, *, pair_offsets: bool) -> Calibration:
    """What the rows of `train` say; priors are chosen on pairs of them that are held out in turn.

    Without any rows that is nothing. With `pair_offsets` the stacks that were measured get offsets
    of their own.
    """
    if not (train & (told.weight > 0)).any():
        return UNCALIBRATED
    strengths = chosen_strengths(told, train)
    solved = fitted(told, train, strengths)
    offsets = list(_level_offsets(told, train, solved))
    notes = [_chosen(strengths)]
    if pair_offsets:
        left = remaining(told, solved)
        offsets += _stack_offsets(told, train, left)
        notes += _without_offset(scattered_stacks(told, train, left))
    return Calibration(
        notes=tuple(notes),
        constants=_constants(told, solved),
        offsets=tuple(offsets),
        pairs=tuple(_pairs(told, train)),
        residuals=residuals(told, train, strengths),
    )


def _without_offset(scattered: Mapping[Stack, int]) -> list[str]:
    return [
        f"no offset of {family} on {chip} under {engine} in {weights}: its {count} points scatter"
        for (family, chip, engine, weights), count in sorted(scattered.items())
    ]


def _chosen(strengths: Strengths) -> str:
    words = ", ".join(f"{level} {sd:g}" for level, sd in strengths.items())
    return f"priors chosen on held-out pairs: {words or 'nothing is fitted'}"


def _constants(told: Observations, solved: Values) -> dict[str, float]:
    return {
        path: float(f"{constant_value(path) * math.exp(x):.4g}")
        for (level, path), x in zip(told.names, solved.tolist(), strict=True)
        if level == "constants" and x != 0
    }


def _level_offsets(told: Observations, train: Mask, solved: Values) -> Iterator[Offset]:
    for column, ((level, value), x) in enumerate(zip(told.names, solved.tolist(), strict=True)):
        if level == "constants" or x == 0:
            continue
        rows = train & (told.jacobian[:, column] != 0)
        places = sorted(set(told.point[rows].tolist()))
        if not places:
            continue
        models = {told.points[place].plan.model for place in places}
        factor = float(f"{math.exp(x):.4f}")
        named = _named(level, value, models)
        yield Offset.model_validate({**named, "factor": factor, "points": len(places)})


def _named(level: str, value: str, models: Iterable[str]) -> dict[str, object]:
    """The keys of an offset that say what a level's value stands for."""
    if level == "family":
        return {"models": tuple(sorted(models))}
    if level == "generation":
        engine, generation = value.split(" ")
        return {"engine": engine, "generation": generation}
    return {level: value}


def _stack_offsets(told: Observations, train: Mask, left: Values) -> list[Offset]:
    models = _models_by_family(told, train)
    return [
        Offset(
            models=models[family],
            chip=chip,
            engine=told_engine,
            weights=weights,
            factor=float(f"{math.exp(x):.4f}"),
            points=points,
        )
        for (family, chip, told_engine, weights), (x, points) in stack_offsets(
            told, train, left
        ).items()
    ]


def _pairs(told: Observations, train: Mask) -> Iterator[MeasuredPair]:
    models = _models_by_family(told, train)
    counts: defaultdict[tuple[str, str, str], set[int]] = defaultdict(set)
    for place in told.point[train].tolist():
        p = told.points[place]
        chip = p.site.chips[p.plan.pools[-1].chip]
        counts[p.point.setup.family, chip.name, chip.vendor].add(place)
    for (family, chip_name, vendor), places in sorted(counts.items()):
        yield MeasuredPair(
            models=models[family], chip=chip_name, vendor=vendor, points=len(places)
        )


def _models_by_family(told: Observations, train: Mask) -> dict[str, tuple[str, ...]]:
    models: defaultdict[str, set[str]] = defaultdict(set)
    for place in told.point[train].tolist():
        p = told.points[place]
        models[p.point.setup.family].add(p.plan.model)
    return {family: tuple(sorted(names)) for family, names in models.items()}
