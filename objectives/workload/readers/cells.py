"""Lines of comma-separated cells under a header, and what is checked in them."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable

from objectives.workload.readers.row import remedy_for_torn, token_count
from spaces.errors import InputError

_WHOLE = re.compile(r"(-?[0-9]{1,18})(?:\.0*)?")


class Cells:
    """The cells of one line, by the names in the header."""

    __slots__ = ("line", "values")

    def __init__(self, header: tuple[str, ...], line: str) -> None:
        self.line = line
        found = split(line)
        if len(found) != len(header):
            raise InputError(
                f"each row must have the {len(header)} fields {','.join(header)}",
                value=line.strip()[:60],
                remedy=remedy_for_torn(line),
            )
        self.values = dict(zip(header, found, strict=True))

    def tokens(self, key: str) -> int:
        """A number of tokens; a fraction of zero is allowed, as spreadsheets write it."""
        match = _WHOLE.fullmatch(self.values[key])
        if match is None:
            raise InputError(
                "a length must be a whole number of tokens",
                key=key,
                value=self.values[key],
                remedy=remedy_for_torn(self.line),
            )
        return token_count(int(match[1]), key)

    def number(self, key: str) -> float:
        """A finite number."""
        try:
            number = float(self.values[key])
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise InputError(
                "this must be a number",
                key=key,
                value=self.values[key],
                remedy=remedy_for_torn(self.line),
            )
        return number

    def optional(self, key: str) -> str | None:
        """The text of a cell, or `None` where it is empty or there is no such column."""
        return self.values.get(key) or None


def split(line: str) -> tuple[str, ...]:
    """The cells of a line, without the blanks around them."""
    plain = '"' not in line
    found = line.split(",") if plain else next(csv.reader([line.strip()]))
    return tuple(cell.strip() for cell in found)


def has_columns(*needed: str) -> Callable[[str], bool]:
    """Whether a line is a header with these columns, in any order."""
    return lambda line: set(needed) <= set(split(line))
