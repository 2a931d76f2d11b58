"""Saying things: talk to stderr, tables and documents to stdout."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

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
    headings: Sequence[str], rows: Iterable[Sequence[str]], *, title: str = "", text: int = 1
) -> None:
    """Hand out a table whose first `text` columns are words and the others numbers."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title or None, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for place, heading in enumerate(headings):
        number = place >= text
        table.add_column(heading, justify="right" if number else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    width = None if sys.stdout.isatty() else WIDTH_OF_A_PIPE
    Console(file=sys.stdout, width=width, highlight=False, markup=False).print(table)


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else None
    if isinstance(value, dict):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return value
