"""From tables of measured operators and steps to the constants that they ask for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from objectives.calibration.measured_files import Rows, kind_of, read_table
from objectives.calibration.operators import operator_fits
from objectives.calibration.steps import step_fits
from spaces.calibration import Calibration, Offset, TableRead
from spaces.errors import InputError


def sorted_files(paths: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """The files with serving points, and the tables of operators and steps, told by content."""
    points = [path for path in paths if kind_of(path) == "points"]
    return points, [path for path in paths if path not in points]


def with_tables(calibration: Calibration, paths: Sequence[Path]) -> Calibration:
    """The calibration with the constants that tables of operators and steps ask for.

    Where two files speak of one constant the later one counts. Raises `InputError` where a file
    is no such table or has no row that the cost model can predict.
    """
    for path in paths:
        calibration = _with_table(calibration, path)
    return calibration


def _with_table(calibration: Calibration, path: Path) -> Calibration:
    kind, rows = kind_of(path), read_table(path)
    assert kind != "points", "serving points are fitted by `calibrated`"
    if kind == "operators":
        fitted = list(operator_fits(rows))
        changes, fits = [found for found, _ in fitted], tuple(told for _, told in fitted)
        offsets: tuple[Offset, ...] = ()
    else:
        steps = list(step_fits(rows, calibration))
        changes, fits = [one.changes for one in steps], tuple(one.told for one in steps)
        offsets = tuple(offset for one in steps for offset in one.offsets)
    if not fits:
        raise _unusable(rows, path)
    table = TableRead(
        kind=kind,
        file=rows.name,
        sha256=rows.sha256,
        rows=len(rows.frame),
        left_out=dict(sorted(rows.left_out.items())),
        fits=fits,
    )
    constants = dict(calibration.constants)
    for found in changes:
        constants |= found
    return calibration.model_copy(
        update={
            "constants": constants,
            "offsets": (*calibration.offsets, *offsets),
            "tables": (*calibration.tables, table),
        }
    )


def _unusable(rows: Rows, path: Path) -> InputError:
    reasons = "; ".join(f"{count} {why}" for why, count in rows.left_out.most_common())
    return InputError(
        f"no row of the table can be predicted: {reasons}",
        where=str(path),
        remedy="docs/calibration.md lists the columns of each kind of table",
    )
