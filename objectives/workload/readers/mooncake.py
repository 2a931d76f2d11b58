"""Mooncake JSONL: one JSON object a line, times in milliseconds, prefix blocks of 512 tokens.

The format of the traces published with Mooncake (Qin et al., FAST 2025). `hash_ids` has one id
for each 512 tokens of input, the last block partial; equal leading ids are an equal prefix.
"""

from __future__ import annotations

from objectives.workload.readers.objects import hash_ids, json_object, looks_like, required
from objectives.workload.readers.row import (
    NS_PER_MS,
    Row,
    TraceFormat,
    nanoseconds,
    one_row_each,
    token_count,
)
from spaces.errors import InputError

BLOCK_TOKENS = 512
KEYS = frozenset({"timestamp", "input_length", "output_length", "hash_ids"})
ROW = "a row has timestamp, input_length, output_length and, if known, hash_ids"

# Near relatives that would be read wrongly without complaint: key -> what it gives away.
RELATIVES = {
    "session_id": "multi-turn rows, whose later turns hold only the new tokens of a session",
    "delay": "multi-turn rows, whose later turns start a delay after the one before",
    "chat_id": "rows of a Bailian trace, with times in seconds and blocks of 16 tokens",
}


def _recognises(line: str) -> bool:
    return looks_like(line, KEYS, refused=frozenset(RELATIVES)) and '"hash_ids": {' not in line


def _parsed(line: str) -> Row:
    fields = json_object(line)
    others = fields.keys() - KEYS
    for key in sorted(others & RELATIVES.keys()):
        raise InputError(
            f"a Mooncake row must not have this field, which marks {RELATIVES[key]}",
            key=key,
            value=fields[key],
            remedy="keep rows of one format in a file, each with the fields of the first",
        )
    input_tokens = token_count(required(fields, "input_length", ROW), "input_length")
    ids = fields.get("hash_ids")
    return Row(
        arrival_ns=nanoseconds(
            required(fields, "timestamp", ROW), "timestamp", NS_PER_MS, "milliseconds"
        ),
        input_tokens=input_tokens,
        output_tokens=token_count(required(fields, "output_length", ROW), "output_length"),
        blocks=None if ids is None else hash_ids(ids, input_tokens, BLOCK_TOKENS),
        unused=tuple(sorted(others)),
    )


MOONCAKE = TraceFormat(
    name="mooncake-jsonl",
    tell_tale="JSON lines with timestamp (ms), input_length, output_length, hash_ids",
    time_key="timestamp",
    has_header=False,
    block_tokens=BLOCK_TOKENS,
    recognises=_recognises,
    opened=one_row_each(_parsed),
)
