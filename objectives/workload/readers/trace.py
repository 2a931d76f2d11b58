"""Any trace file to a workload, with an account of every row."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

import numpy as np

from objectives.workload.readers.azure import AZURE
from objectives.workload.readers.lines import text_lines
from objectives.workload.readers.mooncake import MOONCAKE
from objectives.workload.readers.row import Row, TraceFormat
from objectives.workload.selection import selected
from objectives.workload.workload import Seconds, Workload
from spaces.errors import InputError

FORMATS = (MOONCAKE, AZURE)
KNOWN = "known formats are " + "; ".join(f"{form.name}: {form.tell_tale}" for form in FORMATS)

# Loggers write when a request ends or in batches, so a few rows trade places. More than this, or
# a clock that starts again (two traces in one file), is no trace in order of time.
LATE_ROWS_ALLOWED = 10
LATE_SHARE_ALLOWED = 0.1

PLAUSIBLE_REQUESTS_PER_S = 10_000
PLAUSIBLE_BURST = 1_000


@dataclass(frozen=True, slots=True)
class TraceRead:
    """A workload and what became of the rows of its file: read = kept + dropped for a reason."""

    workload: Workload
    format: str
    rows_read: int
    rows_kept: int
    dropped: dict[str, int]
    warnings: tuple[str, ...]


def read_trace(path: Path, limit: int | None = None) -> TraceRead:
    """The requests of a trace file; with `limit` reading stops after so many are kept.

    The format is told by the first line that is not blank, not by the file's name; gzip is
    unpacked. Rows without input or output tokens are failed requests: they are dropped and
    counted. Rows that come after a later one are sorted into place and reported. Everything else
    that is wrong raises an `InputError` with file and line: nothing is guessed or repaired.
    """
    if limit is not None and limit < 1:
        raise InputError("at least one request must be read", key="limit", value=limit)
    with closing(text_lines(path, KNOWN)) as lines:
        head = next(lines, None)
        if head is None:
            raise InputError("the file is empty", where=str(path), remedy=KNOWN)
        form = _recognised(head, path)
        columns = _Columns(form)
        columns.fill(lines if form.has_header else chain([head], lines), path, limit)
    return columns.finished(path)


def _recognised(head: tuple[int, str], path: Path) -> TraceFormat:
    number, line = head
    for form in FORMATS:
        if form.recognises(line):
            return form
    raise InputError(
        "the format of the trace is not known",
        where=f"{path}:{number}",
        value=line.strip()[:60],
        remedy=KNOWN,
    )


@dataclass(slots=True)
class _Columns:
    """Rows gathered into flat arrays, in the order of the file."""

    form: TraceFormat
    arrival_ns: array[int] = field(default_factory=lambda: array("q"))
    input_tokens: array[int] = field(default_factory=lambda: array("q"))
    output_tokens: array[int] = field(default_factory=lambda: array("q"))
    block_offsets: array[int] = field(default_factory=lambda: array("q", [0]))
    block_ids: array[int] = field(default_factory=lambda: array("i"))
    labels: dict[int, int] = field(default_factory=dict)
    hashed: bool = False
    dropped: Counter[str] = field(default_factory=Counter)
    unused: Counter[str] = field(default_factory=Counter)
    latest_ns: int | None = None
    late_rows: int = 0
    first_late: str = ""

    def fill(self, lines: Iterable[tuple[int, str]], path: Path, limit: int | None) -> None:
        for number, line in lines:
            where = f"{path}:{number}"
            try:
                self._take(self.form.parsed(line), where)
            except InputError as error:
                raise error.located(where) from None
            if len(self.arrival_ns) == limit:
                return

    def finished(self, path: Path) -> TraceRead:
        kept, dropped = len(self.arrival_ns), self.dropped.total()
        if not kept:
            raise InputError(
                "the trace must hold at least one request with input and output tokens",
                where=str(path),
                value=dict(self.dropped) or "no rows",
            )
        self._check_order()
        workload = self._workload(path.name)
        return TraceRead(
            workload=workload,
            format=self.form.name,
            rows_read=kept + dropped,
            rows_kept=kept,
            dropped=dict(sorted(self.dropped.items())),
            warnings=tuple(chain(self._warnings(), _rate_warnings(workload.arrival_s))),
        )

    def _take(self, row: Row, where: str) -> None:
        self.unused.update(row.unused)
        if row.input_tokens == 0:
            self.dropped["no input tokens"] += 1
        elif row.output_tokens == 0:
            self.dropped["no output tokens: failed request"] += 1
        else:
            self._keep(row, where)

    def _keep(self, row: Row, where: str) -> None:
        self._keep_blocks(row.blocks)
        if self.latest_ns is None or row.arrival_ns >= self.latest_ns:
            self.latest_ns = row.arrival_ns
        else:
            self.late_rows += 1
            self.first_late = self.first_late or where
        self.arrival_ns.append(row.arrival_ns)
        self.input_tokens.append(row.input_tokens)
        self.output_tokens.append(row.output_tokens)

    def _keep_blocks(self, blocks: list[int] | None) -> None:
        hashed = blocks is not None
        if len(self.arrival_ns) and hashed != self.hashed:
            raise InputError(
                "either all rows have hash_ids or none has, and the first row "
                f"{'has them' if self.hashed else 'has none'}",
                key="hash_ids",
                remedy="give the ids of every row, or leave them out of all",
            )
        self.hashed = hashed
        labels = self.labels
        self.block_ids.extend([labels.setdefault(block, len(labels)) for block in blocks or ()])
        self.block_offsets.append(len(self.block_ids))

    def _check_order(self) -> None:
        kept = len(self.arrival_ns)
        if self.late_rows > max(LATE_ROWS_ALLOWED, LATE_SHARE_ALLOWED * kept):
            raise InputError(
                "rows must stand in order of time, but for a few",
                where=self.first_late,
                key=self.form.time_key,
                value=f"{self.late_rows} of {kept} rows after a later one, first here",
                remedy="sort the file by time; if it holds several traces, split it",
            )

    def _workload(self, name: str) -> Workload:
        arrival_ns = np.array(self.arrival_ns, dtype=np.int64)
        in_file_order = Workload(
            name=name,
            arrival_s=(arrival_ns - arrival_ns.min()) / 1e9,
            input_tokens=np.array(self.input_tokens, dtype=np.int64),
            output_tokens=np.array(self.output_tokens, dtype=np.int64),
            block_tokens=self.form.block_tokens if self.hashed else 0,
            block_offsets=np.array(self.block_offsets, dtype=np.int64),
            block_ids=np.array(self.block_ids, dtype=np.int32),
        )
        if not self.late_rows:
            return in_file_order
        return selected(in_file_order, np.argsort(arrival_ns, kind="stable"))

    def _warnings(self) -> Iterator[str]:
        if self.late_rows:
            yield (
                f"{self.late_rows} of {len(self.arrival_ns)} rows came after a later one, the "
                f"first at {self.first_late}; the requests were sorted by time"
            )
        for key, rows in sorted(self.unused.items()):
            yield f"the field {key!r} of {rows} rows is not used"


def _rate_warnings(arrival_s: Seconds) -> Iterator[str]:
    requests, span_s = len(arrival_s), float(arrival_s[-1])
    if span_s == 0 and requests > PLAUSIBLE_BURST:
        yield f"all {requests} requests arrive at one moment: is the unit of the times right?"
    elif span_s > 0 and (requests - 1) / span_s > PLAUSIBLE_REQUESTS_PER_S:
        rate = (requests - 1) / span_s
        yield f"the mean rate is {rate:,.0f} requests/s: is the unit of the times right?"
