"""Lines that hold one JSON object, and what is checked in their fields."""

from __future__ import annotations

import json
import math
from typing import Any

from objectives.workload.readers.row import remedy_for_torn
from spaces.errors import InputError


def looks_like(line: str, needed: frozenset[str], refused: frozenset[str] = frozenset()) -> bool:
    """Whether a line is, or was before it was cut, an object with two of the `needed` keys or
    all of fewer, and with none of the `refused` ones."""
    if not line.startswith("{"):
        return False
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        return any(f'"{key}"' in line for key in needed) and not any(
            f'"{key}"' in line for key in refused
        )
    return len(needed & fields.keys()) >= min(2, len(needed)) and not refused & fields.keys()


def json_object(line: str) -> dict[str, Any]:
    """The object in a line."""
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


def required(fields: dict[str, Any], key: str, remedy: str) -> Any:
    """The value of a field, or an `InputError` that names it."""
    if key not in fields:
        raise InputError("this field is required", key=key, value=", ".join(fields), remedy=remedy)
    return fields[key]


def hash_ids(value: Any, input_tokens: int, block_tokens: int, partial: bool = True) -> list[int]:
    """One whole number for each block of the input; the last may be partial.

    Without `partial` a list that leaves the partial block out is taken too.
    """
    if not isinstance(value, list) or not set(map(type, value)) <= {int}:
        raise InputError(
            "hash ids must be a list of whole numbers",
            key="hash_ids",
            value=str(value)[:60],
            remedy="correct the row, or leave hash_ids out of all rows",
        )
    blocks = math.ceil(input_tokens / block_tokens)
    if len(value) != blocks and (partial or len(value) != input_tokens // block_tokens):
        raise InputError(
            f"an input of {input_tokens} tokens has {blocks} hash ids, one for each "
            f"{block_tokens} tokens",
            key="hash_ids",
            value=f"{len(value)} ids",
            remedy=f"hash blocks of {block_tokens} tokens, or leave hash_ids out of all rows",
        )
    return value
