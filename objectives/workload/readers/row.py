"""One row of a trace, whatever its format."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from objectives.workload.workload import USER, RequestClass
from spaces.errors import InputError

MOST_TOKENS = 2**31 - 1
LAST_NS = 2**63 - 1
NS_PER_S = 1_000_000_000
NS_PER_MS = 1_000_000

# As `parent`: the turn waits for nothing, though its session has earlier ones.
NOTHING = object()


class Row(NamedTuple):
    """One request as recorded.

    `arrival_ns` counts from whatever moment the trace counts from; `None` where only the pause
    before the turn is recorded. `blocks` is `None` without prefix ids. `unused` names the fields
    this program has no use for.

    `session` tells the rows of a session; without one a row is a session of its own. A turn waits
    for the row of its session whose `key` is `parent`, or for the one before it. `gap_ns` is the
    pause after that one's end, `service_ns` how long the answer to this row took. With `new_only`
    the input holds only what is new since the turn before. Without prefix ids the row shares
    `kept_tokens` with the row `kept_of`, or with the one it waits for.
    """

    arrival_ns: int | None
    input_tokens: int
    output_tokens: int
    blocks: list[int] | None = None
    unused: tuple[str, ...] = ()
    session: Hashable = None
    key: Hashable = None
    parent: Hashable = None
    gap_ns: int | None = None
    service_ns: int | None = None
    new_only: bool = False
    kept_tokens: int | None = None
    kept_of: Hashable = None
    kind: int | None = None
    request_class: RequestClass | None = None


@dataclass(frozen=True, slots=True)
class TraceFormat:
    """How a format of lines is told apart from others and how one line of it is read.

    `opened` is given the first line and the file, and returns what makes rows of one line. That
    raises an `InputError` which need not say where: the caller knows the line. `block_tokens` is
    the size of the blocks that ids stand for, or of those inferred from `kept_tokens`. With
    `by_session` the rows of a session stand together, and only they are in order of time.
    `own_ids` means that ids of different lines have nothing to do with one another, `unsorted`
    that the format is published with rows out of order.
    """

    name: str
    tell_tale: str
    time_key: str
    has_header: bool
    block_tokens: int
    recognises: Callable[[str], bool]
    opened: Callable[[str, Path], Callable[[str], Iterable[Row]]]
    by_session: bool = False
    own_ids: bool = False
    unsorted: bool = False
    turn_kind: int = USER
    notes: tuple[str, ...] = ()


def one_row_each(
    parsed: Callable[[str], Row],
) -> Callable[[str, Path], Callable[[str], list[Row]]]:
    """`opened` of a format that needs neither its first line nor its folder."""
    return some_rows_each(lambda line: [parsed(line)])


def some_rows_each(
    parsed: Callable[[str], Iterable[Row]],
) -> Callable[[str, Path], Callable[[str], list[Row]]]:
    """The same for a format whose lines hold any number of rows."""

    def opened(_head: str, _path: Path) -> Callable[[str], list[Row]]:
        return lambda line: list(parsed(line))

    return opened


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


def nanoseconds(value: Any, key: str, unit_ns: int, unit: str) -> int:
    """A time or duration, given as a number of `unit`s, in nanoseconds."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if number and 0 <= value * unit_ns <= LAST_NS:
        exact: int = round(value * unit_ns)
        return exact
    raise InputError(
        f"a time must be a number of {unit}, zero or more",
        key=key,
        value=value,
        remedy="correct or delete the row",
    )


def remedy_for_torn(text: str) -> str:
    """What to do about a line that cannot be parsed."""
    if text.endswith("\n"):
        return "correct or delete the row; a trace is in one format from first to last line"
    return (
        "the last line has no end, so the file may be cut off: fetch it again or delete the line"
    )
