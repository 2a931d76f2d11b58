"""Multi-turn Mooncake JSONL, as AIPerf and Dynamo write it: later turns hold only what is new.

Rows with one `session_id` are turns in their order. The first has a `timestamp` in milliseconds,
the later ones a `delay` in milliseconds after the end of the one before. `input_length` and
`hash_ids` (512 tokens each) of later turns leave out the context: it is the input and output of
all turns before. `parent_session_id` and the like of other tools are not known to this reader.
"""

from __future__ import annotations

from typing import Any

from objectives.workload.readers.objects import hash_ids, json_object, looks_like, required
from objectives.workload.readers.row import (
    NS_PER_MS,
    Row,
    TraceFormat,
    nanoseconds,
    one_row_each,
    token_count,
)
from objectives.workload.workload import APPEND
from spaces.errors import InputError

BLOCK_TOKENS = 512
KEYS = frozenset({"session_id", "input_length"})
FOREIGN = frozenset({"chat_id", "newly_append_tokens", "messages"})
KNOWN = frozenset(
    {"session_id", "input_length", "output_length", "hash_ids", "timestamp", "delay"}
    | {"group_id", "is_restart"}
)
ROW = "a row has session_id, input_length, output_length, timestamp or delay, and hash_ids"


def _recognises(line: str) -> bool:
    if not looks_like(line, KEYS, refused=FOREIGN):
        return False
    return "passages_ids" not in line and "sys_prompt" not in line


def _parsed(line: str) -> Row:
    fields = json_object(line)
    session = _session(required(fields, "session_id", ROW))
    new_tokens = token_count(required(fields, "input_length", ROW), "input_length")
    ids = fields.get("hash_ids")
    if ids is not None:
        hash_ids(ids, new_tokens, BLOCK_TOKENS)
    gap_ns = _optional(fields, "delay")
    return Row(
        arrival_ns=_optional(fields, "timestamp"),
        input_tokens=new_tokens,
        output_tokens=token_count(required(fields, "output_length", ROW), "output_length"),
        blocks=ids,
        session=session,
        gap_ns=gap_ns,
        new_only=True,
        unused=tuple(sorted(fields.keys() - KNOWN)),
    )


def _optional(fields: dict[str, Any], key: str) -> int | None:
    value = fields.get(key)
    return None if value is None else nanoseconds(value, key, NS_PER_MS, "milliseconds")


def _session(value: Any) -> str:
    if not isinstance(value, str | int) or isinstance(value, bool):
        raise InputError(
            "a session id must be text or a whole number", key="session_id", value=value
        )
    return str(value)


MULTI_TURN = TraceFormat(
    name="multi-turn-jsonl",
    tell_tale="JSON lines with session_id, timestamp or delay (ms), input_length of new tokens",
    time_key="timestamp",
    has_header=False,
    block_tokens=BLOCK_TOKENS,
    recognises=_recognises,
    opened=one_row_each(_parsed),
    by_session=True,
    turn_kind=APPEND,
)
