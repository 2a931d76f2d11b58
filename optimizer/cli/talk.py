"""Saying things: talk to stderr, tables and documents to stdout."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from shutil import get_terminal_size
from typing import Any, Literal

import typer

# Wide enough that no cell is cut where nobody looks at a terminal.
WIDTH_OF_A_PIPE = 400


def say(text: str) -> None:
    """Talk to the user."""
    typer.echo(text, err=True)


def show(text: str) -> None:
    """Hand out a result."""
    typer.echo(text)


def show_json(document: object) -> None:
    """Hand out one JSON document; numbers JSON does not have become null."""
    typer.echo(json.dumps(_plain(document), indent=2, allow_nan=False))


def show_table(
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    text: int = 1,
    spare: Sequence[str] = (),
) -> None:
    """Hand out a table whose first `text` columns are words and the others numbers.

    Columns with the headings `spare` are left out, the last first, where the terminal is too
    narrow for all.
    """
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    width = get_terminal_size().columns if sys.stdout.isatty() else WIDTH_OF_A_PIPE
    cells = [list(row) for row in rows]
    left = _fitting(headings, cells, spare, width)
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for place in left:
        justify: Literal["left", "right"] = "left" if place < text else "right"
        table.add_column(headings[place], justify=justify, no_wrap=place < text, overflow="fold")
    for row in cells:
        table.add_row(*(row[place] for place in left))
    Console(file=sys.stdout, width=width, highlight=False, markup=False).print(table)


def _fitting(
    headings: Sequence[str], rows: Sequence[Sequence[str]], spare: Sequence[str], width: int
) -> list[int]:
    """The places of the columns to show; a heading may be broken between its words."""
    widths = [
        max(len(part) for part in (*heading.split(), "", *(row[place] for row in rows)))
        for place, heading in enumerate(headings)
    ]
    left = list(range(len(headings)))
    for heading in reversed(spare):
        if sum(widths[place] + 3 for place in left) <= width:
            break
        left.remove(headings.index(heading))
    return left


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else None
    if isinstance(value, dict):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return value
