"""RAGPulse JSONL: questions to a knowledge base, their prompts told by component.

`hash_ids` lists ids of system prompt, passages, history, web search and user input; tables beside
the trace hold their lengths. `timestamp` is a text of seconds. Equal leading components are an
equal prefix, in the order in which they are named here.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from objectives.workload.readers.lines import text_lines
from objectives.workload.readers.objects import json_object, looks_like, required
from objectives.workload.readers.row import (
    NS_PER_S,
    Row,
    TraceFormat,
    nanoseconds,
    token_count,
)
from objectives.workload.workload import USER
from spaces.errors import InputError

BLOCK_TOKENS = 16
ROW = "a row has timestamp, input_length, output_length, session_id and hash_ids by component"

# Component -> the table of its lengths, and the key of the id in there, in the prompt's order.
COMPONENTS = {
    "sys_prompt": ("1_sys_prompt.jsonl", "sys_prompt_id"),
    "passages_ids": ("2_passages.jsonl", "passage_id"),
    "history": ("3_history.jsonl", "history_id"),
    "web_search": ("5_web_search.jsonl", "web_search_id"),
    "user_input": ("4_user_input.jsonl", "user_input_id"),
}


def _opened(_head: str, path: Path) -> Callable[[str], list[Row]]:
    lengths = {name: _table(path.parent / file, key) for name, (file, key) in COMPONENTS.items()}
    labels: dict[Any, int] = {}

    def parsed(line: str) -> list[Row]:
        fields = json_object(line)
        input_tokens = token_count(required(fields, "input_length", ROW), "input_length")
        parts = _parts(required(fields, "hash_ids", ROW), lengths)
        return [
            Row(
                arrival_ns=_nanoseconds(required(fields, "timestamp", ROW)),
                input_tokens=input_tokens,
                output_tokens=token_count(required(fields, "output_length", ROW), "output_length"),
                blocks=_blocks(parts, input_tokens, labels),
                session=str(required(fields, "session_id", ROW)),
            )
        ]

    return parsed


def _table(path: Path, key: str) -> dict[int, int]:
    lengths: dict[int, int] = {}
    remedy = "keep the five tables of RAGPulse in the folder of its trace"
    for number, line in text_lines(path, remedy):
        try:
            fields = json_object(line)
            lengths[required(fields, key, remedy)] = token_count(
                required(fields, "token_length", remedy), "token_length"
            )
        except InputError as error:
            raise error.located(f"{path}:{number}") from None
    return lengths


def _parts(ids: Any, lengths: dict[str, dict[int, int]]) -> list[tuple[str, int, int]]:
    """Component, id and length of each part of a prompt, in order."""
    if not isinstance(ids, dict):
        raise InputError("ids must be lists by component", key="hash_ids", value=str(ids)[:60])
    parts = []
    for name in COMPONENTS:
        for part in ids.get(name, ()):
            if part not in lengths[name]:
                raise InputError(
                    "a part must stand in the table of its component",
                    key=f"hash_ids.{name}",
                    value=part,
                    remedy=f"look into {COMPONENTS[name][0]}",
                )
            parts.append((name, part, lengths[name][part]))
    return parts


def _blocks(
    parts: list[tuple[str, int, int]], input_tokens: int, labels: dict[Any, int]
) -> list[int]:
    """One id a block, equal for equal beginnings: a block is told by all that went before it."""
    ids: list[int] = []
    prefix, end = -1, 0
    for name, part, length in parts:
        prefix = labels.setdefault((prefix, name, part), len(labels))
        end += length
        while (len(ids) + 1) * BLOCK_TOKENS <= min(end, input_tokens):
            ids.append(labels.setdefault((prefix, len(ids)), len(labels)))
    while len(ids) * BLOCK_TOKENS < input_tokens:
        ids.append(labels.setdefault((prefix, len(ids), "rest"), len(labels)))
    return ids


def _nanoseconds(value: Any) -> int:
    try:
        seconds = float(value) if isinstance(value, str) else value
    except ValueError:
        seconds = value
    return nanoseconds(seconds, "timestamp", NS_PER_S, "seconds")


RAGPULSE = TraceFormat(
    name="ragpulse-jsonl",
    tell_tale="JSON lines with hash_ids by component (sys_prompt, passages_ids, ...)",
    time_key="timestamp",
    has_header=False,
    block_tokens=BLOCK_TOKENS,
    recognises=lambda line: (
        looks_like(line, frozenset({"hash_ids", "session_id"}))
        and ("passages_ids" in line or "sys_prompt" in line)
    ),
    opened=_opened,
    unsorted=True,
    turn_kind=USER,
)
