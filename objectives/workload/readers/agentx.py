"""AgentX (Weka) sessions of coding agents: one JSON object a session, one a file or a line.

The format of callanjfox/kv-cache-tester and of the corpora that InferenceX replays. Times are
seconds from the start of the session, block ids count 64 tokens and mean something only within
their session. A `subagent` entry holds requests of its own; their times count from the entry in
some files and from the session's start in others, told apart by whether they begin before it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from objectives.workload.readers.objects import hash_ids, json_object, looks_like, required
from objectives.workload.readers.row import (
    NOTHING,
    NS_PER_S,
    Row,
    TraceFormat,
    nanoseconds,
    token_count,
)
from objectives.workload.workload import APPEND, SUBAGENT, USER
from spaces.errors import InputError

BLOCK_TOKENS = 64
KEYS = frozenset({"requests", "block_size"})
REQUEST = "a request has t, type, in, out and hash_ids"


@dataclass(slots=True)
class _Thread:
    """The requests of the agent, or of one subagent, so far: what the next one may wait for."""

    name: str
    last: str | None = None
    last_end_s: float = 0.0
    end_is_known: bool = True
    rows: list[Row] = field(default_factory=list)


def session_rows(session: dict[str, Any], name: str) -> list[Row]:
    """The requests of one session in order of time, each with what it waits for.

    A turn waits for whichever ended last before it: the turn before, or a subagent begun since.
    Recorded pauses count from the last answer whose time is known, so that those after an answer
    of unknown time are left open.
    A subagent begins with the turn that was under way, or ended last, when its entry was made.
    """
    size = session.get("block_size")
    if size != BLOCK_TOKENS:
        raise InputError(f"blocks must be of {BLOCK_TOKENS} tokens", key="block_size", value=size)
    main = _Thread("main")
    subagents: list[_Thread] = []
    for place, entry in enumerate(required(session, "requests", "a session has requests")):
        try:
            if entry.get("type") == "subagent":
                subagents.append(_subagent(entry, f"agent {place}", main, name))
            else:
                _main_turn(entry, main, subagents, name)
        except InputError as error:
            raise error.located("", f"requests.{place}") from None
        except (AttributeError, TypeError):
            raise InputError(
                "a request must be an object", key=f"requests.{place}", value=str(entry)[:60]
            ) from None
    rows = [*main.rows, *(row for agent in subagents for row in agent.rows)]
    return sorted(rows, key=lambda row: (row.arrival_ns or 0, row.parent is not NOTHING))


def _main_turn(
    entry: dict[str, Any], main: _Thread, subagents: list[_Thread], session: str
) -> None:
    at_s = _seconds(entry, "t")
    ended = [agent for agent in subagents if agent.last and agent.last_end_s <= at_s]
    before = max([main, *ended], key=lambda thread: thread.last_end_s)
    pause_s = _pause_s(entry, before, at_s, same=before is main)
    _append(main, entry, session, at_s, before.last, pause_s, None)


def _subagent(entry: dict[str, Any], name: str, main: _Thread, session: str) -> _Thread:
    begun_s = _seconds(entry, "t")
    requests = required(entry, "requests", "a subagent has requests")
    relative = bool(requests) and _seconds(requests[0], "t") < begun_s
    agent = _Thread(name)
    for place, request in enumerate(requests):
        at_s = _seconds(request, "t") + (begun_s if relative else 0.0)
        first = agent.last is None
        before = main if first else agent
        pause_s = _pause_s(request, before, at_s, same=not first)
        kind = SUBAGENT if first else None
        try:
            _append(agent, request, session, at_s, before.last, pause_s, kind)
        except InputError as error:
            raise error.located("", f"requests.{place}") from None
    return agent


def _pause_s(entry: dict[str, Any], before: _Thread, at_s: float, same: bool) -> float | None:
    """The recorded pause, or the time since the answer before; None where its end is not known.

    `same` says that the entry goes on in the thread it waits for, as recorded pauses mean it.
    """
    if not before.end_is_known:
        return None
    thought = entry.get("think_time") if same else None
    return max(float(at_s - before.last_end_s if thought is None else thought), 0.0)


def _append(
    thread: _Thread,
    entry: dict[str, Any],
    session: str,
    at_s: float,
    before: str | None,
    pause_s: float | None,
    kind: int | None,
) -> None:
    key = f"{thread.name}/{len(thread.rows)}"
    input_tokens = token_count(required(entry, "in", REQUEST), "in")
    output_tokens = token_count(required(entry, "out", REQUEST), "out")
    service_s = entry.get("api_time")
    if kind is None:
        kind = APPEND if "tool_result" in (entry.get("input_types") or ()) else USER
    thread.rows.append(
        Row(
            arrival_ns=round(at_s * NS_PER_S),
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            blocks=hash_ids(entry.get("hash_ids"), input_tokens, BLOCK_TOKENS, partial=False),
            session=session,
            key=(session, key),
            parent=NOTHING if before is None else (session, before),
            gap_ns=None if pause_s is None else round(pause_s * NS_PER_S),
            service_ns=None if service_s is None else round(float(service_s) * NS_PER_S),
            kind=kind if before is not None else None,
        )
    )
    thread.last, thread.last_end_s = key, at_s + float(service_s or 0.0)
    thread.end_is_known = service_s is not None


def _seconds(entry: dict[str, Any], key: str) -> float:
    return nanoseconds(required(entry, key, REQUEST), key, NS_PER_S, "seconds") / NS_PER_S


def _opened(_head: str, path: Path) -> Callable[[str], list[Row]]:
    """Sessions are told apart by their place: copies of one session have one id."""
    numbers = count()

    def parsed(line: str) -> list[Row]:
        return session_rows(json_object(line), f"{path.name}/{next(numbers)}")

    return parsed


AGENTX = TraceFormat(
    name="agentx-jsonl",
    tell_tale="a JSON object a session, with block_size, hash_id_scope and requests (s)",
    time_key="t",
    has_header=False,
    block_tokens=BLOCK_TOKENS,
    recognises=lambda line: looks_like(line, KEYS),
    opened=_opened,
    by_session=True,
    own_ids=True,
    turn_kind=APPEND,
    notes=("sessions have no recorded start: all of them begin at time 0",),
)
