"""BurstGPT CSV, of 6 columns or, with sessions and times of answers, of 8.

Times are seconds from a local midnight. `Request tokens` hold the whole history of a session,
which is empty on API rows. Rows without response tokens are failed requests.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from objectives.workload.readers.cells import Cells, has_columns, split
from objectives.workload.readers.row import NS_PER_S, Row, TraceFormat, nanoseconds

NEEDED = ("Timestamp", "Request tokens", "Response tokens")
BLOCK_TOKENS = 16


def _opened(head: str, _path: Path) -> Callable[[str], list[Row]]:
    header = split(head)

    def parsed(line: str) -> list[Row]:
        cells = Cells(header, line)
        session = cells.optional("Session ID")
        elapsed = cells.optional("Elapsed time")
        return [
            Row(
                arrival_ns=_seconds(cells, "Timestamp"),
                input_tokens=cells.tokens("Request tokens"),
                output_tokens=cells.tokens("Response tokens"),
                session=session,
                service_ns=None if elapsed is None else _seconds(cells, "Elapsed time"),
                kept_tokens=None if "Session ID" not in header else HISTORY,
            )
        ]

    return parsed


def _seconds(cells: Cells, key: str) -> int:
    return nanoseconds(cells.number(key), key, NS_PER_S, "seconds")


# More than any input: a turn keeps all of the one before it that is not longer than itself.
HISTORY = 2**31 - 1

BURSTGPT = TraceFormat(
    name="burstgpt-csv",
    tell_tale=f"CSV with the columns {', '.join(NEEDED)} (s)",
    time_key="Timestamp",
    has_header=True,
    block_tokens=BLOCK_TOKENS,
    recognises=has_columns(*NEEDED),
    opened=_opened,
    notes=("prefixes are inferred: a turn keeps the whole turn before, if it is not shorter",),
)
