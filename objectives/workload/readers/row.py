"""One row of a trace, whatever its format."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from spaces.errors import InputError

MOST_TOKENS = 2**31 - 1
LAST_NS = 2**63 - 1


class Row(NamedTuple):
    """One request as recorded.

    `arrival_ns` counts from whatever moment the trace counts from. `blocks` is `None` without
    prefix information. `unused` names the fields this program has no use for.
    """

    arrival_ns: int
    input_tokens: int
    output_tokens: int
    blocks: list[int] | None = None
    unused: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TraceFormat:
    """How a format is told apart from others and how one line of it is read.

    `parsed` raises an `InputError` that need not say where: the caller knows the line.
    """

    name: str
    tell_tale: str
    time_key: str
    has_header: bool
    block_tokens: int
    recognises: Callable[[str], bool]
    parsed: Callable[[str], Row]


def token_count(value: Any, key: str) -> int:
    """The value itself if it is a number of tokens, else an `InputError`."""
    if type(value) is not int or not 0 <= value <= MOST_TOKENS:
        raise InputError(
            f"a length must be a whole number of tokens from 0 to {MOST_TOKENS}",
            key=key,
            value=value,
            remedy="correct or delete the row",
        )
    return value


def remedy_for_torn(text: str) -> str:
    """What to do about a line that cannot be parsed."""
    if text.endswith("\n"):
        return "correct or delete the row; a trace is in one format from first to last line"
    return (
        "the last line has no end, so the file may be cut off: fetch it again or delete the line"
    )
