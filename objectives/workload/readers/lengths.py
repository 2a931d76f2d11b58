"""CSV of other simulators: Vidur, Sarathi and Splitwise; times in seconds, no prefix ids."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from objectives.workload.readers.cells import Cells, has_columns, split
from objectives.workload.readers.row import NS_PER_S, Row, TraceFormat, nanoseconds

VIDUR = ("num_prefill_tokens", "num_decode_tokens")
SPLITWISE = ("arrival_timestamp", "prompt_size", "token_size")


def _opened(
    time_key: str, input_key: str, output_key: str
) -> Callable[[str, Path], Callable[[str], list[Row]]]:
    def opened(head: str, _path: Path) -> Callable[[str], list[Row]]:
        header = split(head)

        def parsed(line: str) -> list[Row]:
            cells = Cells(header, line)
            timed = time_key in cells.values
            return [
                Row(
                    arrival_ns=nanoseconds(cells.number(time_key), time_key, NS_PER_S, "seconds")
                    if timed
                    else None,
                    input_tokens=cells.tokens(input_key),
                    output_tokens=cells.tokens(output_key),
                )
            ]

        return parsed

    return opened


VIDUR_CSV = TraceFormat(
    name="vidur-csv",
    tell_tale=f"CSV with the columns {', '.join(VIDUR)} and, if known, arrived_at (s)",
    time_key="arrived_at",
    has_header=True,
    block_tokens=0,
    recognises=has_columns(*VIDUR),
    opened=_opened("arrived_at", *VIDUR),
)
SPLITWISE_CSV = TraceFormat(
    name="splitwise-csv",
    tell_tale=f"CSV with the columns {', '.join(SPLITWISE)} (s)",
    time_key="arrival_timestamp",
    has_header=True,
    block_tokens=0,
    recognises=has_columns(*SPLITWISE),
    opened=_opened(*SPLITWISE),
)
