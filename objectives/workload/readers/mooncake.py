"""Mooncake JSONL: one JSON object a line, times in milliseconds, prefix blocks of 512 tokens.

The format of the traces published with Mooncake (Qin et al., FAST 2025). `hash_ids` has one id
for each 512 tokens of input, the last block partial; equal leading ids are an equal prefix.
"""

from __future__ import annotations

import json
import math
from typing import Any

from objectives.workload.readers.row import (
    LAST_NS,
    Row,
    TraceFormat,
    remedy_for_torn,
    token_count,
)
from spaces.errors import InputError

BLOCK_TOKENS = 512
NS_PER_MS = 1_000_000
KEYS = frozenset({"timestamp", "input_length", "output_length", "hash_ids"})

# Near relatives that would be read wrongly without complaint: key -> what it gives away.
RELATIVES = {
    "session_id": "multi-turn rows, whose later turns hold only the new tokens of a session",
    "delay": "multi-turn rows, whose later turns start a delay after the one before",
    "chat_id": "rows of a Bailian trace, with times in seconds and blocks of 16 tokens",
}


def _recognises(line: str) -> bool:
    if not line.startswith("{"):
        return False
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        return any(f'"{key}"' in line for key in KEYS)
    return len(KEYS & fields.keys()) >= 2 and not isinstance(fields.get("hash_ids"), dict)


def _parsed(line: str) -> Row:
    fields = _fields(line)
    others = fields.keys() - KEYS
    for key in sorted(others & RELATIVES.keys()):
        raise InputError(
            f"a Mooncake row must not have this field, which marks {RELATIVES[key]}",
            key=key,
            value=fields[key],
            remedy="give each row its timestamp and the whole input of its request",
        )
    input_tokens = token_count(_required(fields, "input_length"), "input_length")
    return Row(
        arrival_ns=_nanoseconds(_required(fields, "timestamp")),
        input_tokens=input_tokens,
        output_tokens=token_count(_required(fields, "output_length"), "output_length"),
        blocks=_blocks(fields.get("hash_ids"), input_tokens),
        unused=tuple(sorted(others)),
    )


def _fields(line: str) -> dict[str, Any]:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise InputError(
            "each line must be one whole JSON object",
            value=line.strip()[:60],
            remedy=remedy_for_torn(line),
        )
    return fields


def _required(fields: dict[str, Any], key: str) -> Any:
    if key not in fields:
        raise InputError(
            "this field is required",
            key=key,
            value=", ".join(fields),
            remedy="a row has timestamp, input_length, output_length and, if known, hash_ids",
        )
    return fields[key]


def _nanoseconds(value: Any) -> int:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if number and 0 <= value * NS_PER_MS <= LAST_NS:
        nanoseconds: int = round(value * NS_PER_MS)
        return nanoseconds
    raise InputError(
        "a timestamp must be a number of milliseconds, zero or more",
        key="timestamp",
        value=value,
        remedy="correct or delete the row",
    )


def _blocks(value: Any, input_tokens: int) -> list[int] | None:
    if value is None:
        return None
    if not isinstance(value, list) or not set(map(type, value)) <= {int}:
        raise InputError(
            "hash ids must be a list of whole numbers",
            key="hash_ids",
            value=str(value)[:60],
            remedy="correct the row, or leave hash_ids out of all rows",
        )
    blocks = math.ceil(input_tokens / BLOCK_TOKENS)
    if len(value) != blocks:
        raise InputError(
            f"an input of {input_tokens} tokens has {blocks} hash ids, one for each "
            f"{BLOCK_TOKENS} tokens",
            key="hash_ids",
            value=f"{len(value)} ids",
            remedy=f"hash blocks of {BLOCK_TOKENS} tokens, or leave hash_ids out of all rows",
        )
    return value


MOONCAKE = TraceFormat(
    name="mooncake-jsonl",
    tell_tale="JSON lines with timestamp (ms), input_length, output_length, hash_ids",
    time_key="timestamp",
    has_header=False,
    block_tokens=BLOCK_TOKENS,
    recognises=_recognises,
    parsed=_parsed,
)
