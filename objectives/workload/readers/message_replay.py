"""Sessions as messages and turns to replay: one JSON object a session, waits in seconds.

The format of Prathmesh234/mutliturn-inferenceX. `delay_before_s` is the pause before a turn,
`rec_cache_read_tokens` what the provider's cache gave; the texts are not looked at. The cache held
some of the first turns too: a beginning that all sessions share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

from objectives.workload.readers.objects import json_object, looks_like, required
from objectives.workload.readers.row import (
    NS_PER_S,
    Row,
    TraceFormat,
    nanoseconds,
    token_count,
)
from objectives.workload.workload import APPEND
from spaces.errors import InputError

KEYS = frozenset({"messages", "turns"})
TURN = "a turn has rec_input_tokens, rec_output_tokens, rec_cache_read_tokens, delay_before_s"


FIRST_OF_ALL = "the first turn of the file"


def _opened(_head: str, _path: Path) -> Callable[[str], Iterable[Row]]:
    """What the cache held of the first turn of a session is the beginning of all sessions."""
    numbers = count()

    def parsed(line: str) -> Iterator[Row]:
        later = next(numbers) > 0
        for place, row in enumerate(_rows(line)):
            if place > 0:
                yield row
            elif later:
                yield row._replace(kept_of=FIRST_OF_ALL)
            else:
                yield row._replace(key=FIRST_OF_ALL)

    return parsed


def _rows(line: str) -> Iterable[Row]:
    fields = json_object(line)
    session = str(required(fields, "session_id", "a session has session_id, messages and turns"))
    for place, turn in enumerate(required(fields, "turns", "a session has turns")):
        try:
            yield _row(turn, session, first=place == 0)
        except InputError as error:
            raise error.located("", f"turns.{place}") from None


def _row(turn: dict[str, Any], session: str, first: bool) -> Row:
    counts = {
        key: token_count(required(turn, key, TURN), key)
        for key in ("rec_input_tokens", "rec_output_tokens", "rec_cache_read_tokens")
    }
    delay = required(turn, "delay_before_s", TURN)
    return Row(
        arrival_ns=None,
        input_tokens=counts["rec_input_tokens"],
        output_tokens=counts["rec_output_tokens"],
        session=session,
        gap_ns=None if first else nanoseconds(delay, "delay_before_s", NS_PER_S, "seconds"),
        kept_tokens=counts["rec_cache_read_tokens"],
    )


MESSAGE_REPLAY = TraceFormat(
    name="message-replay-jsonl",
    tell_tale="a JSON object a session, with messages and turns (s)",
    time_key="delay_before_s",
    has_header=False,
    block_tokens=64,
    recognises=lambda line: looks_like(line, KEYS),
    opened=_opened,
    by_session=True,
    turn_kind=APPEND,
    notes=(
        "prefixes are inferred from rec_cache_read_tokens, shared with the turn before, "
        "those of first turns with the first session",
    ),
)
