"""Tables of measured operators and steps, told apart from serving points by their columns."""

from __future__ import annotations

import csv
import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pandas as pd

from spaces.documents import read_text
from spaces.errors import InputError

Kind = Literal["points", "operators", "steps"]


@dataclass(slots=True)
class Rows:
    """The rows of one file; those that are not used are counted in `left_out` by reason."""

    name: str
    sha256: str
    frame: pd.DataFrame
    left_out: Counter[str] = field(default_factory=Counter)

    def check_columns(self, needed: Sequence[str]) -> None:
        """Raise an `InputError` that names what is missing."""
        missing = [name for name in needed if name not in self.frame]
        if missing:
            raise InputError(
                f"the table lacks columns: {', '.join(missing)}",
                where=self.name,
                remedy="docs/calibration.md lists the columns of each kind of table",
            )

    def column(self, *names: str) -> pd.Series[str]:
        """The first of the columns that is there."""
        found = next((name for name in names if name in self.frame), None)
        if found is None:
            raise InputError(
                f"the table must say {' or '.join(names)}",
                where=self.name,
                remedy="docs/calibration.md lists the columns of each kind of table",
            )
        return self.frame[found].astype(str)

    def kept(
        self, frame: pd.DataFrame, wanted: pd.Series[bool] | pd.Series, reason: str
    ) -> pd.DataFrame:
        """The wanted rows; the others are counted."""
        mask = wanted.astype(bool)
        if not mask.all():
            self.left_out[reason] += int((~mask).sum())
        return frame[mask]


def kind_of(path: Path) -> Kind:
    """What a file holds: rows with `op` and `latency_us` are operators, rows with `latency_ms` and
    `decode_requests` steps, all else (results of load generators too) serving points.
    """
    lines = read_text(path).lstrip().splitlines()
    if not lines or lines[0].startswith(("{", "[")):
        return "points"
    names = set(next(csv.reader(lines[:1])))
    if {"op", "latency_us"} <= names:
        return "operators"
    return "steps" if {"latency_ms", "decode_requests"} <= names else "points"


def read_table(path: Path) -> Rows:
    """The rows of a CSV; `InputError` where it is none or has none."""
    try:
        frame = pd.read_csv(path, low_memory=False)
    except (pd.errors.ParserError, UnicodeDecodeError) as error:
        raise InputError(f"the file must be a CSV ({error})", where=str(path)) from None
    if frame.empty:
        raise InputError(
            "the table needs at least one row",
            where=str(path),
            remedy="docs/calibration.md lists the columns of each kind of table",
        )
    return Rows(path.name, hashlib.sha256(path.read_bytes()).hexdigest(), frame)
