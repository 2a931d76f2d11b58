"""OpenTelemetry gen_ai spans, as inference-perf and Exgentic write them: JSON with `spans`.

A call waits for the call of its session that ended last before it began. Its input shares the
messages it begins with, with the earlier call that has most of them. Tokens are those in
`gen_ai.usage.*`; where a call has none, they are estimated from its texts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from objectives.workload.readers.azure import wall_clock_ns
from objectives.workload.readers.objects import json_object, looks_like, required
from objectives.workload.readers.row import NOTHING, Row, TraceFormat, some_rows_each, token_count
from objectives.workload.workload import APPEND, SUBAGENT, USER
from spaces.errors import InputError

KEYS = frozenset({"spans"})
SPAN = "a span has span_id, start_time, end_time and attributes"

# A round figure for English text; texts of other languages and code have fewer characters.
CHARACTERS_PER_TOKEN = 4
MESSAGES = "gen_ai.input.messages"
OUTPUTS = ("gen_ai.output.text", "gen_ai.output.messages")


def _rows(line: str) -> Iterable[Row]:
    document = json_object(line)
    calls = [
        _call(place, span, str(document.get("trace_id", "")))
        for place, span in enumerate(required(document, "spans", "a document has spans"))
        if _is_call(span, place)
    ]
    calls.sort(key=lambda call: (call["start_ns"], call["key"]))
    for place, call in enumerate(calls):
        earlier = [other for other in calls[:place] if other["session"] == call["session"]]
        ended = [other for other in earlier if other["end_ns"] <= call["start_ns"]]
        before = max(ended, key=lambda other: int(other["end_ns"]), default=None)
        source = max(earlier, key=lambda other: _shared(other, call), default=None)
        yield Row(
            arrival_ns=call["start_ns"],
            input_tokens=call["input_tokens"],
            output_tokens=call["output_tokens"],
            session=call["session"],
            key=call["key"],
            parent=NOTHING if before is None else before["key"],
            service_ns=call["end_ns"] - call["start_ns"],
            kept_tokens=0 if source is None else _kept_tokens(source, call),
            kept_of=None if source is None else source["key"],
            kind=None if before is None else _kind(call),
        )


def _is_call(span: Any, place: int) -> bool:
    attributes = span.get("attributes") if isinstance(span, dict) else None
    if not isinstance(attributes, dict):
        raise InputError("a span has attributes", key=f"spans.{place}", value=str(span)[:60])
    operation = attributes.get("gen_ai.operation.name")
    return operation in ("chat", "text_completion", "generate_content")


def _call(place: int, span: dict[str, Any], trace: str) -> dict[str, Any]:
    try:
        start_ns, end_ns = (
            wall_clock_ns(str(required(span, key, SPAN)), key, "\n")
            for key in ("start_time", "end_time")
        )
        if end_ns < start_ns:
            raise InputError("a span must not end before it starts", key="end_time")
        attributes = span["attributes"]
        messages = _messages(attributes.get(MESSAGES))
        output = "".join(str(attributes.get(key, "")) for key in OUTPUTS)
        return {
            "key": (trace, str(span.get("span_id", place))),
            "session": str(attributes.get("exgentic.session.id", trace)),
            "start_ns": start_ns,
            "end_ns": end_ns,
            "messages": messages,
            "input_tokens": _tokens(attributes, "input", sum(map(len, messages))),
            "output_tokens": _tokens(attributes, "output", len(output)),
        }
    except InputError as error:
        raise error.located("", f"spans.{place}") from None


def _messages(value: Any) -> list[str]:
    """The messages as texts; only their lengths and equality matter."""
    try:
        found = json.loads(value) if isinstance(value, str) else value
    except ValueError:
        found = [value]
    parts = found if isinstance(found, list) else []
    return [_text(part) for part in parts]


def _text(message: Any) -> str:
    if isinstance(message, dict) and isinstance(message.get("content"), str):
        return f"{message.get('role', '')}\0{message['content']}"
    return json.dumps(message, sort_keys=True)


def _tokens(attributes: dict[str, Any], side: str, characters: int) -> int:
    key = f"gen_ai.usage.{side}_tokens"
    value = attributes.get(key)
    if value is not None:
        return token_count(value, key)
    return -(-characters // CHARACTERS_PER_TOKEN)


def _shared(one: dict[str, Any], other: dict[str, Any]) -> int:
    """Characters of the messages that two calls both begin with."""
    shared = 0
    for mine, its in zip(one["messages"], other["messages"], strict=False):
        if mine != its:
            break
        shared += len(mine)
    return shared


def _kept_tokens(source: dict[str, Any], call: dict[str, Any]) -> int:
    characters = sum(map(len, call["messages"]))
    share = _shared(source, call) / characters if characters else 0.0
    return int(share * call["input_tokens"])


def _kind(call: dict[str, Any]) -> int:
    if len(call["messages"]) <= 1:
        return SUBAGENT
    return APPEND if call["messages"][-1].startswith("tool\0") else USER


SPANS = TraceFormat(
    name="otel-spans-json",
    tell_tale="JSON with spans, their start_time, end_time and gen_ai attributes",
    time_key="start_time",
    has_header=False,
    block_tokens=16,
    recognises=lambda line: looks_like(line, KEYS),
    opened=some_rows_each(_rows),
    by_session=True,
    notes=(
        "calls without gen_ai.usage tokens are estimated at "
        f"{CHARACTERS_PER_TOKEN} characters a token",
    ),
)
