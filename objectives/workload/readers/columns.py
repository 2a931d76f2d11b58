"""Rows of a trace gathered into the flat arrays of a workload, with an account of every row."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

import numpy as np

from objectives.workload.kinds import kinds_by_prefix
from objectives.workload.readers.doubts import copy_doubts, grid_doubts, rate_doubts, speed_doubts
from objectives.workload.readers.row import NOTHING, NS_PER_S, Row, TraceFormat
from objectives.workload.selection import selected, trees
from objectives.workload.workload import (
    FIRST,
    NO_PARENT,
    SUBAGENT,
    Numbers,
    RequestClass,
    Seconds,
    Tokens,
    Workload,
)
from spaces.errors import InputError

# Loggers write when a request ends or in batches, so a few rows trade places. More than this, or
# a clock that starts again (two traces in one file), is no trace in order of time.
LATE_ROWS_ALLOWED = 10
LATE_SHARE_ALLOWED = 0.1

# What recorded calls of coding agents show in the median, for traces without times of answers.
ASSUMED_OUTPUT_TOKENS_PER_S = 40
UNKNOWN = -1


@dataclass(frozen=True, slots=True)
class TraceRead:
    """A workload and what became of the rows of its file: read = kept + dropped for a reason."""

    workload: Workload
    format: str
    rows_read: int
    rows_kept: int
    dropped: dict[str, int]
    warnings: tuple[str, ...]

    @property
    def span_s(self) -> float:
        """Seconds from the first arrival to the last."""
        return float(self.workload.arrival_s[-1])


def _numbers() -> array[int]:
    return array("q")


@dataclass(slots=True)
class Columns:
    """Rows in the order of the file. Memory grows with the requests and blocks kept, and with
    the names of sessions, not with the text."""

    form: TraceFormat
    arrival_ns: array[int] = field(default_factory=_numbers)
    input_tokens: array[int] = field(default_factory=_numbers)
    output_tokens: array[int] = field(default_factory=_numbers)
    gap_ns: array[int] = field(default_factory=_numbers)
    service_ns: array[int] = field(default_factory=_numbers)
    parent: array[int] = field(default_factory=lambda: array("i"))
    kind: array[int] = field(default_factory=lambda: array("b"))
    class_id: array[int] = field(default_factory=lambda: array("i"))
    block_offsets: array[int] = field(default_factory=lambda: array("q", [0]))
    block_ids: array[int] = field(default_factory=lambda: array("i"))
    labels: dict[int, int] = field(default_factory=dict)
    next_block: int = 0
    hashed: bool = False
    classes: dict[RequestClass, int] = field(default_factory=dict)
    place_of: dict[Hashable, int] = field(default_factory=dict)
    last_of: dict[Hashable, int] = field(default_factory=dict)
    context_of: dict[Hashable, int] = field(default_factory=dict)
    dropped: Counter[str] = field(default_factory=Counter)
    unused: Counter[str] = field(default_factory=Counter)
    lost_parents: int = 0
    untimed: int = 0
    latest_ns: int | None = None
    late_rows: int = 0
    first_late: str = ""

    def fill(
        self, lines: Iterable[tuple[int, str]], head: str, path: Path, limit: int | None
    ) -> None:
        """Take the rows of the lines, until `limit` are kept."""
        parsed = self.form.opened(head, path)
        for number, line in lines:
            where = f"{path}:{number}"
            try:
                for row in parsed(line):
                    self.take(row, where)
                    if len(self.arrival_ns) == limit:
                        return
            except InputError as error:
                raise error.located(where) from None
            if self.form.own_ids:
                self.labels.clear()

    def take(self, row: Row, where: str) -> None:
        """Keep a row, or drop and count it."""
        self.unused.update(row.unused)
        if row.new_only:
            row = self._with_context(row)
        parent = self._parent(row)
        if row.input_tokens == 0:
            self._drop(row, parent, "no input tokens")
        elif row.output_tokens == 0:
            self._drop(row, parent, "no output tokens: failed request")
        else:
            self._keep(row, parent, where)

    def _with_context(self, row: Row) -> Row:
        """A row of new tokens only, with the context of its session before them."""
        context = self.context_of.get(row.session, 0)
        self.context_of[row.session] = context + row.input_tokens + row.output_tokens
        if not context:
            return row
        before = self.last_of.get(row.session, NO_PARENT)
        kept = 0 if before == NO_PARENT else self.input_tokens[before]
        empty = row.input_tokens == 0
        return row._replace(
            input_tokens=0 if empty else context + row.input_tokens, blocks=None, kept_tokens=kept
        )

    def _parent(self, row: Row) -> int:
        if row.parent is NOTHING:
            return NO_PARENT
        if row.parent is None:
            return self.last_of.get(row.session, NO_PARENT) if row.session is not None else -1
        if row.parent not in self.place_of:
            self.lost_parents += 1
            return NO_PARENT
        return self.place_of[row.parent]

    def _drop(self, row: Row, parent: int, reason: str) -> None:
        """What waits for a dropped row waits for what that one waited for."""
        self.dropped[reason] += 1
        if row.key is not None and parent != NO_PARENT:
            self.place_of[row.key] = parent

    def _keep(self, row: Row, parent: int, where: str) -> None:
        place = len(self.arrival_ns)
        self._keep_blocks(row, parent)
        self._keep_time(row, parent, where)
        self.input_tokens.append(row.input_tokens)
        self.output_tokens.append(row.output_tokens)
        self.service_ns.append(UNKNOWN if row.service_ns is None else row.service_ns)
        self.parent.append(parent)
        kind = self.form.turn_kind if row.kind is None else row.kind
        self.kind.append(FIRST if parent == NO_PARENT and kind != SUBAGENT else kind)
        told = row.request_class or RequestClass()
        self.class_id.append(self.classes.setdefault(told, len(self.classes)))
        if row.session is not None:
            self.last_of[row.session] = place
        if row.key is not None:
            self.place_of[row.key] = place

    def _keep_time(self, row: Row, parent: int, where: str) -> None:
        self.gap_ns.append(UNKNOWN if row.gap_ns is None else row.gap_ns)
        if row.arrival_ns is None:
            self.untimed += parent == NO_PARENT
            waited = 0 if parent == NO_PARENT else self._end_ns(parent)
            self.arrival_ns.append(waited + (row.gap_ns or 0))
            return
        self.arrival_ns.append(row.arrival_ns)
        if self.latest_ns is None or row.arrival_ns >= self.latest_ns:
            self.latest_ns = row.arrival_ns
        elif not self.form.by_session:
            self.late_rows += 1
            self.first_late = self.first_late or where

    def _end_ns(self, place: int) -> int:
        service_ns = self.service_ns[place]
        if service_ns == UNKNOWN:
            service_ns = self.output_tokens[place] * NS_PER_S // ASSUMED_OUTPUT_TOKENS_PER_S
        return self.arrival_ns[place] + service_ns

    def _keep_blocks(self, row: Row, parent: int) -> None:
        hashed = row.blocks is not None or row.kept_tokens is not None
        if len(self.arrival_ns) and hashed != self.hashed:
            raise InputError(
                "either all rows have hash_ids or none has, and the first row "
                f"{'has them' if self.hashed else 'has none'}",
                key="hash_ids",
                remedy="give the ids of every row, or leave them out of all",
            )
        self.hashed = hashed
        if row.blocks is not None:
            self._keep_labels(row.blocks)
        elif hashed:
            self._keep_inferred(row, parent)
        self.block_offsets.append(len(self.block_ids))

    def _keep_labels(self, blocks: list[int]) -> None:
        labels, number = self.labels, self.next_block
        for block in blocks:
            if block not in labels:
                labels[block] = number
                number += 1
        self.next_block = number
        self.block_ids.extend([labels[block] for block in blocks])

    def _keep_inferred(self, row: Row, parent: int) -> None:
        """What a row shares with an earlier one in whole blocks, and new blocks for the rest."""
        source = parent if row.kept_of is None else self.place_of.get(row.kept_of, NO_PARENT)
        shared = 0
        if source != NO_PARENT and row.input_tokens >= self.input_tokens[source]:
            kept = min(row.kept_tokens or 0, self.input_tokens[source])
            shared = kept // self.form.block_tokens
        elif source != NO_PARENT and row.kept_tokens is not None:
            whole_history = row.kept_tokens > row.input_tokens
            shared = 0 if whole_history else row.kept_tokens // self.form.block_tokens
        start = self.block_offsets[source] if source != NO_PARENT else 0
        self.block_ids.extend(self.block_ids[start : start + shared])
        fresh = -(-row.input_tokens // self.form.block_tokens) - shared
        self.block_ids.extend(range(self.next_block, self.next_block + fresh))
        self.next_block += fresh

    def finished(self, path: Path) -> TraceRead:
        """The workload in order of time, and the account."""
        kept, dropped = len(self.arrival_ns), self.dropped.total()
        if not kept:
            raise InputError(
                "the trace must hold at least one request with input and output tokens",
                where=str(path),
                value=dict(self.dropped) or "no rows",
            )
        self._check_order()
        workload, doubts = self._workload(path.name)
        return TraceRead(
            workload=workload,
            format=self.form.name,
            rows_read=kept + dropped,
            rows_kept=kept,
            dropped=dict(sorted(self.dropped.items())),
            warnings=tuple(chain(self._warnings(), doubts, self._more_doubts(workload))),
        )

    def _more_doubts(self, workload: Workload) -> Iterator[str]:
        if not self.untimed:
            yield from rate_doubts(workload)
            yield from grid_doubts(workload)
        yield from copy_doubts(workload)

    def _check_order(self) -> None:
        kept = len(self.arrival_ns)
        allowed = kept if self.form.unsorted else max(LATE_ROWS_ALLOWED, LATE_SHARE_ALLOWED * kept)
        if self.late_rows > allowed:
            raise InputError(
                "rows must stand in order of time, but for a few",
                where=self.first_late,
                key=self.form.time_key,
                value=f"{self.late_rows} of {kept} rows after a later one, first here",
                remedy="sort the file by time; if it holds several traces, split it",
            )

    def _workload(self, name: str) -> tuple[Workload, list[str]]:
        arrival_ns = np.array(self.arrival_ns, dtype=np.int64)
        parent = np.array(self.parent, dtype=np.int32)
        moved = _after_parents(arrival_ns, parent)
        gap_s, doubts = self._gaps(arrival_ns, parent)
        if moved:
            doubts.append(f"{moved} turns recorded before the one they wait for were moved to it")
        in_file_order = Workload(
            name=name,
            arrival_s=(arrival_ns - arrival_ns.min()) / NS_PER_S,
            input_tokens=np.array(self.input_tokens, dtype=np.int64),
            output_tokens=np.array(self.output_tokens, dtype=np.int64),
            block_tokens=self.form.block_tokens if self.hashed else 0,
            block_offsets=np.array(self.block_offsets, dtype=np.int64),
            block_ids=np.array(self.block_ids, dtype=np.int32),
            session=trees(parent),
            parent=parent,
            gap_s=gap_s,
            kind=np.array(self.kind, dtype=np.int8),
            class_id=np.array(self.class_id, dtype=np.int32),
            classes=tuple(self.classes),
        )
        doubts += speed_doubts(
            in_file_order.output_tokens, np.array(self.service_ns, dtype=np.int64) / NS_PER_S
        )
        if (np.diff(arrival_ns) < 0).any():
            order = np.argsort(arrival_ns, kind="stable")
            return kinds_by_prefix(selected(in_file_order, order)), doubts
        return kinds_by_prefix(in_file_order), doubts

    def _gaps(self, arrival_ns: Tokens, parent: Numbers) -> tuple[Seconds, list[str]]:
        """The recorded pauses, or the time from the end of the parent to the arrival."""
        gap_ns = np.array(self.gap_ns, dtype=np.int64)
        service_ns = np.array(self.service_ns, dtype=np.int64)
        output_ns = np.array(self.output_tokens) * NS_PER_S // ASSUMED_OUTPUT_TOKENS_PER_S
        end_ns = arrival_ns + np.where(service_ns == UNKNOWN, output_ns, service_ns)
        turns = parent != NO_PARENT
        open_gaps = turns & (gap_ns == UNKNOWN)
        gap_ns[open_gaps] = (arrival_ns - end_ns[parent])[open_gaps]
        doubts = []
        guessed = int(np.count_nonzero(open_gaps & (service_ns[parent] == UNKNOWN)))
        if guessed:
            doubts.append(
                f"times of answers are not recorded: the pauses before {guessed} turns assume "
                f"{ASSUMED_OUTPUT_TOKENS_PER_S} output tokens/s"
            )
        early = int(np.count_nonzero(open_gaps & (gap_ns < 0)))
        if early:
            doubts.append(f"{early} turns began before the one before had ended: no pause")
        return np.where(turns, np.maximum(gap_ns, 0), 0) / NS_PER_S, doubts

    def _warnings(self) -> Iterator[str]:
        if self.late_rows:
            yield (
                f"{self.late_rows} of {len(self.arrival_ns)} rows came after a later one, the "
                f"first at {self.first_late}; the requests were sorted by time"
            )
        if self.untimed:
            yield f"{self.untimed} sessions have no time of their start: they begin at time 0"
        if self.lost_parents:
            yield f"{self.lost_parents} turns name one that is not before them: they wait for none"
        for key, rows in sorted(self.unused.items()):
            yield f"the field {key!r} of {rows} rows is not used"
        yield from self.form.notes


def _after_parents(arrival_ns: Tokens, parent: Numbers) -> int:
    """Move turns that were recorded before their parent to its arrival; how many there were."""
    moved = 0
    while True:
        early = np.flatnonzero((parent != NO_PARENT) & (arrival_ns < arrival_ns[parent]))
        if not len(early):
            return moved
        moved += len(early)
        arrival_ns[early] = arrival_ns[parent[early]]
