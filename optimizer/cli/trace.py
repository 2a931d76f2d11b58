"""servefront trace"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from optimizer.cli.talk import say, show_json, show_table


def trace(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A trace of requests.")],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
) -> None:
    """Say what format a trace has, what is in it, and what was kept and dropped."""
    from objectives.workload import describe, read_trace

    read = read_trace(file)
    for warning in read.warnings:
        say(f"note: {warning}")
    statistics = describe(read.workload)
    rows = {"read": read.rows_read, "kept": read.rows_kept, "dropped": read.dropped}
    if as_json:
        show_json(
            {
                "format": read.format,
                "rows": rows,
                "statistics": statistics,
                "warnings": list(read.warnings),
            }
        )
        return
    facts = {"format": read.format, "rows": rows, **statistics}
    show_table(["", ""], [(name, _words(value)) for name, value in _flat(facts)])


def _flat(data: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Nested mappings as lines, keys joined by spaces."""
    lines: list[tuple[str, Any]] = []
    for key, value in data.items():
        name = f"{prefix}{key.replace('_', ' ')}"
        lines += _flat(value, f"{name} ") if isinstance(value, dict) else [(name, value)]
    return lines


def _words(value: Any) -> str:
    from results.words import format_value

    if value is None:
        return "-"
    return format_value(value) if isinstance(value, int | float) else str(value)
