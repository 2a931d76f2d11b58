"""TraceLab: rounds of coding sessions as JSONL, and its CSV of sessions to replay.

A round of the JSONL has `prefix_tokens`, which the provider's cache gave, and
`newly_append_tokens`; events and tools have wall-clock times. There are no block ids: a round
shares its prefix with the round before. The CSV has lengths in tokens and waits in milliseconds,
after the answer; `input_len` holds only what is new after `prefix_len`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from objectives.workload.readers.azure import wall_clock_ns
from objectives.workload.readers.cells import Cells, has_columns, split
from objectives.workload.readers.objects import json_object, looks_like, required
from objectives.workload.readers.row import (
    NS_PER_MS,
    Row,
    TraceFormat,
    nanoseconds,
    one_row_each,
    token_count,
)
from objectives.workload.workload import APPEND, USER
from spaces.errors import InputError

BLOCK_TOKENS = 256
KEYS = frozenset({"newly_append_tokens", "prefix_tokens", "timing_events"})
ROUND = "a round has session_id, prefix_tokens, newly_append_tokens, output_tokens, timing_events"
REPLAY = ("session_id", "round_idx", "prefix_len", "input_len", "output_len", "tool_wait_after_ms")
INPUTS = frozenset({"user_message", "tool_result"})


def _round(line: str) -> Row:
    fields = json_object(line)
    lengths = {
        key: token_count(required(fields, key, ROUND), key)
        for key in ("prefix_tokens", "newly_append_tokens", "output_tokens")
    }
    input_tokens = lengths["prefix_tokens"] + lengths["newly_append_tokens"]
    total = fields.get("input_tokens_total", input_tokens)
    if total != input_tokens:
        raise InputError(
            "input_tokens_total must be prefix_tokens + newly_append_tokens",
            key="input_tokens_total",
            value=total,
        )
    start_ns, end_ns = _span(required(fields, "timing_events", ROUND), line)
    by_tool = fields.get("first_input_event_type") == "tool_result"
    return Row(
        arrival_ns=start_ns,
        input_tokens=input_tokens,
        output_tokens=lengths["output_tokens"],
        session=str(required(fields, "session_id", ROUND)),
        service_ns=end_ns - start_ns,
        kept_tokens=lengths["prefix_tokens"],
        kind=APPEND if by_tool else USER,
    )


def _span(events: Any, line: str) -> tuple[int, int]:
    """When the last input came in and the last event was seen."""
    try:
        times = [
            (event["event_type"], wall_clock_ns(event["timestamp"], "timestamp", line))
            for event in events
        ]
        inputs = [moment for kind, moment in times if kind in INPUTS]
        end_ns = max(moment for _, moment in times)
        return max(inputs) if inputs else min(moment for _, moment in times), end_ns
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise error.located("", "timing_events") from None
        raise InputError(
            "timing events must be a list of event_type and timestamp",
            key="timing_events",
            value=str(events)[:60],
        ) from None


TRACELAB = TraceFormat(
    name="tracelab-jsonl",
    tell_tale="JSON lines with prefix_tokens, newly_append_tokens, timing_events",
    time_key="timing_events",
    has_header=False,
    block_tokens=BLOCK_TOKENS,
    recognises=lambda line: looks_like(line, KEYS),
    opened=one_row_each(_round),
    by_session=True,
    notes=(
        "prefixes are inferred: a round shares prefix_tokens with the round before, in blocks of "
        f"{BLOCK_TOKENS} tokens",
    ),
)


def _replay(head: str, _path: Path) -> Callable[[str], list[Row]]:
    header = split(head)
    wait_after_ns: dict[str, int] = {}

    def parsed(line: str) -> list[Row]:
        cells = Cells(header, line)
        session = cells.values["session_id"]
        first = cells.tokens("round_idx") == 0
        gap_ns = wait_after_ns.get(session)
        if not first and gap_ns is None:
            raise InputError(
                "the rounds of a session must begin with 0 and stand in order",
                key="round_idx",
                value=cells.values["round_idx"],
            )
        wait = "tool_wait_after_ms"
        wait_after_ns[session] = nanoseconds(cells.number(wait), wait, NS_PER_MS, "milliseconds")
        arrival = cells.optional("arrival_time") if first else None
        return [
            Row(
                arrival_ns=None
                if arrival is None
                else nanoseconds(
                    cells.number("arrival_time"), "arrival_time", NS_PER_MS, "milliseconds"
                ),
                input_tokens=cells.tokens("prefix_len") + cells.tokens("input_len"),
                output_tokens=cells.tokens("output_len"),
                session=session,
                gap_ns=None if first else gap_ns,
                kept_tokens=cells.tokens("prefix_len"),
            )
        ]

    return parsed


TRACELAB_REPLAY = TraceFormat(
    name="session-replay-csv",
    tell_tale=f"CSV with the columns {', '.join(REPLAY)}",
    time_key="arrival_time",
    has_header=True,
    block_tokens=64,
    recognises=has_columns(*REPLAY),
    opened=_replay,
    by_session=True,
    turn_kind=APPEND,
)
