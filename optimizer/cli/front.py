"""servefront front"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from optimizer.cli.talk import show, show_table


def front(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A study directory.")],
    form: Annotated[
        Literal["table", "csv", "json"], typer.Option("--format", help="What to write.")
    ] = "table",
    storage: Annotated[
        str | None, typer.Option(metavar="URL", help="The study's storage, if it has a password.")
    ] = None,
) -> None:
    """Show the Pareto front of a study, finished or not."""
    from optimizer.directory import read_results
    from results.tables import front_frame, front_json, front_rows_for_terminal, to_csv

    found = read_results(directory, storage).front
    if form == "json":
        show(front_json(found).rstrip())
    elif form == "csv":
        show(to_csv(front_frame(found)).rstrip())
    else:
        headings, rows = front_rows_for_terminal(found)
        show_table(headings, rows, text=3)
