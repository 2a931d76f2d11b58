"""Azure LLM inference traces: CSV with wall-clock times and two lengths, without prefix ids.

The format of the traces published with Splitwise (Patel et al., ISCA 2024) and of their 2024
successors, which add a UTC offset to the time. Fractions of a second have 100 ns digits.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

from objectives.workload.readers.row import Row, TraceFormat, remedy_for_torn, token_count
from spaces.errors import InputError

HEADER = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
NS_PER_S = 1_000_000_000
_TIME = re.compile(
    r"((?:19|2[01])\d\d-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)?"
)
_WHOLE = re.compile(r"-?[0-9]{1,18}")


def _recognises(line: str) -> bool:
    return _cells(line) == HEADER


def _parsed(line: str) -> Row:
    cells = _cells(line)
    if len(cells) != len(HEADER):
        raise InputError(
            f"each row must have the {len(HEADER)} fields {','.join(HEADER)}",
            value=line.strip()[:60],
            remedy=remedy_for_torn(line),
        )
    return Row(
        arrival_ns=_nanoseconds(cells[0], line),
        input_tokens=_tokens(cells[1], HEADER[1], line),
        output_tokens=_tokens(cells[2], HEADER[2], line),
    )


def _cells(line: str) -> tuple[str, ...]:
    return tuple(cell.strip() for cell in line.split(","))


def _nanoseconds(text: str, line: str) -> int:
    match = _TIME.fullmatch(text)
    try:
        if match is None:
            raise ValueError
        moment = datetime.fromisoformat(match[1] + (match[3] or "Z"))
    except ValueError:
        raise InputError(
            "a timestamp must read like 2023-11-16 18:17:03.9799600",
            key=HEADER[0],
            value=text,
            remedy=remedy_for_torn(line),
        ) from None
    seconds = (moment - _EPOCH) // _SECOND
    return seconds * NS_PER_S + int((match[2] or "").ljust(9, "0"))


def _tokens(text: str, key: str, line: str) -> int:
    if not _WHOLE.fullmatch(text):
        raise InputError(
            "a length must be a whole number of tokens",
            key=key,
            value=text,
            remedy=remedy_for_torn(line),
        )
    return token_count(int(text), key)


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND = datetime(1970, 1, 1, 0, 0, 1) - datetime(1970, 1, 1)

AZURE = TraceFormat(
    name="azure-csv",
    tell_tale=f"CSV with the header {','.join(HEADER)}",
    time_key=HEADER[0],
    has_header=True,
    block_tokens=0,
    recognises=_recognises,
    parsed=_parsed,
)
