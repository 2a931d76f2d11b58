"""servefront trace"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from optimizer.cli.talk import say, show_json, show_table

if TYPE_CHECKING:
    from objectives.workload import ColumnMapping, Workload


def trace(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A trace of requests, or a folder of one.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
    columns: Annotated[
        str | None,
        typer.Option(
            metavar="KEY=COLUMN,...",
            help="Read any table: input_tokens=..., output_tokens=..., arrival=..., time_unit=ms.",
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(metavar="N", help="Stop after N requests are kept.")
    ] = None,
    fit: Annotated[
        Path | None, typer.Option(metavar="OUT.yaml", help="Write a preset with its figures.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(metavar="OUT.png", help="Draw it.")] = None,
    parquet: Annotated[
        Path | None, typer.Option(metavar="OUT.parquet", help="Write it in the native form.")
    ] = None,
) -> None:
    """Say what format a trace has, what is in it, and what was kept and dropped.

    Tells also how far it is from each preset: 0 is the same, 1 has nothing in common.
    """
    from objectives.workload import describe, read_trace, write_parquet
    from objectives.workload.distance import preset_distances

    read = read_trace(file, limit, None if columns is None else _mapping(columns))
    for warning in read.warnings:
        say(f"note: {warning}")
    statistics = describe(read.workload)
    distances = preset_distances(read.workload)
    if fit is not None:
        _write_fit(fit, read.workload, file)
    if plot is not None:
        _draw(plot, read.workload, statistics)
    if parquet is not None:
        write_parquet(read.workload, parquet)
        say(f"wrote {parquet}")
    rows = {"read": read.rows_read, "kept": read.rows_kept, "dropped": read.dropped}
    if as_json:
        show_json(
            {
                "format": read.format,
                "rows": rows,
                "statistics": statistics,
                "distance_from_presets": distances,
                "warnings": list(read.warnings),
            }
        )
        return
    nearest = {name: found["distance"] for name, found in distances.items()}
    facts = {"format": read.format, "rows": rows, **statistics, "distance from": nearest}
    show_table(["", ""], [(name, _words(value)) for name, value in _flat(facts)])


def _mapping(text: str) -> ColumnMapping:
    from objectives.workload import ColumnMapping
    from spaces.documents import validated
    from spaces.errors import InputError

    pairs = [part.partition("=") for part in text.split(",")]
    if not all(key and equals and value for key, equals, value in pairs):
        raise InputError(
            "columns are given as KEY=COLUMN, separated by commas",
            key="--columns",
            value=text,
            remedy="for example --columns input_tokens=prompt,output_tokens=answer",
        )
    return validated(ColumnMapping, {key: value for key, _, value in pairs}, "--columns")


def _write_fit(out: Path, workload: Workload, file: Path) -> None:
    from objectives.workload.fit import fitted_preset
    from results.files import write_atomically
    from spaces.documents import dump_yaml

    write_atomically(out, dump_yaml(fitted_preset(workload, f"the trace {file.name}")))
    say(f"wrote {out}; a job may name it: workload: {{preset: {out}}}")


def _draw(out: Path, workload: Workload, statistics: dict[str, Any]) -> None:
    from objectives.workload.distance import quantities
    from results.trace_plot import draw_trace

    reuse = statistics["prefix_reuse"]
    draw_trace(
        out,
        f"{workload.name}: {len(workload):,} requests",
        quantities(workload),
        workload.arrival_s,
        reuse["hit_by_cache_tokens"] if reuse else {},
        reuse["hit_fraction"] if reuse else None,
    )
    say(f"wrote {out}")


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
