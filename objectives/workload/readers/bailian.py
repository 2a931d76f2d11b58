"""Qwen-Bailian JSONL: times in seconds, prefix blocks of 16 tokens, links to the turn before.

The format of Alibaba's anonymised traces (arXiv 2506.02634). `parent_chat_id` -1 begins a
session. Times of answers are not recorded.
"""

from __future__ import annotations

from objectives.workload.readers.objects import hash_ids, json_object, looks_like, required
from objectives.workload.readers.row import (
    NOTHING,
    NS_PER_S,
    Row,
    TraceFormat,
    nanoseconds,
    one_row_each,
    token_count,
)
from objectives.workload.workload import USER
from spaces.errors import InputError

BLOCK_TOKENS = 16
KEYS = frozenset({"chat_id", "parent_chat_id"})
KNOWN = KEYS | {"timestamp", "input_length", "output_length", "type", "turn", "hash_ids"}
ROW = "a row has chat_id, parent_chat_id, timestamp, input_length, output_length, hash_ids"


def _parsed(line: str) -> Row:
    fields = json_object(line)
    chat, parent = required(fields, "chat_id", ROW), required(fields, "parent_chat_id", ROW)
    for key, value in (("chat_id", chat), ("parent_chat_id", parent)):
        if type(value) is not int:
            raise InputError("a chat id must be a whole number", key=key, value=value)
    input_tokens = token_count(required(fields, "input_length", ROW), "input_length")
    ids = fields.get("hash_ids")
    return Row(
        arrival_ns=nanoseconds(
            required(fields, "timestamp", ROW), "timestamp", NS_PER_S, "seconds"
        ),
        input_tokens=input_tokens,
        output_tokens=token_count(required(fields, "output_length", ROW), "output_length"),
        blocks=None if ids is None else hash_ids(ids, input_tokens, BLOCK_TOKENS),
        key=chat,
        parent=NOTHING if parent == -1 else parent,
        unused=tuple(sorted(fields.keys() - KNOWN)),
    )


BAILIAN = TraceFormat(
    name="bailian-jsonl",
    tell_tale="JSON lines with chat_id, parent_chat_id, timestamp (s), hash_ids of 16 tokens",
    time_key="timestamp",
    has_header=False,
    block_tokens=BLOCK_TOKENS,
    recognises=lambda line: looks_like(line, KEYS),
    opened=one_row_each(_parsed),
    turn_kind=USER,
)
