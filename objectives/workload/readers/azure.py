"""Azure LLM inference traces: CSV with wall-clock times and two lengths, without prefix ids.

The format of the traces published with Splitwise (Patel et al., ISCA 2024) and of their 2024
successors, which add a UTC offset to the time. Fractions of a second have 100 ns digits.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

from objectives.workload.readers.cells import Cells, split
from objectives.workload.readers.row import (
    NS_PER_S,
    Row,
    TraceFormat,
    one_row_each,
    remedy_for_torn,
)
from spaces.errors import InputError

HEADER = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_TIME = re.compile(
    r"((?:19|2[01])\d\d-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)?"
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND = datetime(1970, 1, 1, 0, 0, 1) - datetime(1970, 1, 1)


def wall_clock_ns(text: str, key: str, line: str) -> int:
    """Nanoseconds since 1970 of a date and time of day, in UTC where no offset is given."""
    match = _TIME.fullmatch(text)
    try:
        if match is None:
            raise ValueError
        moment = datetime.fromisoformat(match[1] + (match[3] or "Z"))
    except ValueError:
        raise InputError(
            "a timestamp must read like 2023-11-16 18:17:03.9799600",
            key=key,
            value=text,
            remedy=remedy_for_torn(line),
        ) from None
    seconds = (moment - _EPOCH) // _SECOND
    return seconds * NS_PER_S + int((match[2] or "").ljust(9, "0"))


def _parsed(line: str) -> Row:
    cells = Cells(HEADER, line)
    return Row(
        arrival_ns=wall_clock_ns(cells.values[HEADER[0]], HEADER[0], line),
        input_tokens=cells.tokens(HEADER[1]),
        output_tokens=cells.tokens(HEADER[2]),
    )


AZURE = TraceFormat(
    name="azure-csv",
    tell_tale=f"CSV with the header {','.join(HEADER)}",
    time_key=HEADER[0],
    has_header=True,
    block_tokens=0,
    recognises=lambda line: split(line) == HEADER,
    opened=one_row_each(_parsed),
)
