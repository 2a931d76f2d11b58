"""The columns of a points file, and how their cells are read."""

from __future__ import annotations

import csv
import hashlib
import io
import math
from collections.abc import Mapping
from pathlib import Path

from spaces.documents import read_text
from spaces.errors import InputError

Row = Mapping[str, str]

# Without these a row says neither what was deployed nor what it was asked.
REQUIRED = ("model", "hardware", "engine", "num_chips")
# Of each pair one is enough: what was really sent, or what was asked of the load generator.
REQUIRED_PAIRS = (("isl_mean", "isl"), ("osl_mean", "osl"))


class Unreadable(ValueError):
    """A cell that does not hold what its column is for; the text is the reason to count."""


def read_rows(path: Path) -> tuple[list[Row], str]:
    """The rows of a CSV of measured points, and the SHA-256 of its bytes.

    Raises `InputError` where the file is no such CSV.
    """
    text = read_text(path)
    reader = csv.DictReader(io.StringIO(text, newline=""))
    try:
        check_columns(reader.fieldnames or (), str(path))
        rows: list[Row] = [_cleaned(row) for row in reader]
    except csv.Error as error:
        raise InputError(
            f"the file must be a CSV ({error})", where=f"{path}:{reader.line_num}"
        ) from None
    if not rows:
        raise InputError("a points file needs at least one row", where=str(path))
    return rows, hashlib.sha256(path.read_bytes()).hexdigest()


def check_columns(names: object, where: str) -> None:
    """Raise an `InputError` unless the columns that no row can do without are there."""
    known = set(names) if isinstance(names, list | tuple) else set()
    missing = [name for name in REQUIRED if name not in known]
    missing += [" or ".join(pair) for pair in REQUIRED_PAIRS if not known & set(pair)]
    if missing:
        raise InputError(
            "a points file needs the columns of measured serving points, these are missing: "
            + ", ".join(missing),
            where=where,
            remedy="docs/calibration.md lists the columns",
        )


def _cleaned(row: Mapping[str | None, object]) -> Row:
    """Cells without blanks around them; cells beyond the header's columns are dropped."""
    return {
        name: value.strip() if isinstance(value, str) else ""
        for name, value in row.items()
        if name is not None
    }


def number(row: Row, column: str) -> float | None:
    """The number in a cell, or None where it is empty or not there."""
    text = row.get(column, "")
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        raise Unreadable(f"{column} is not a number") from None
    if not math.isfinite(value):
        raise Unreadable(f"{column} is not finite")
    return value


def positive(row: Row, column: str) -> float | None:
    """The same, which must be above 0."""
    value = number(row, column)
    if value is not None and value <= 0:
        raise Unreadable(f"{column} is not above 0")
    return value


def count(row: Row, column: str) -> int | None:
    """A whole number above 0, or None where the cell is empty."""
    value = positive(row, column)
    if value is not None and value != int(value):
        raise Unreadable(f"{column} is not a whole number")
    return None if value is None else int(value)
