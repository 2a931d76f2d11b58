"""servefront front"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from optimizer.cli.talk import show, show_table

if TYPE_CHECKING:
    from results.front import ParetoFront


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
    from results.tables import front_frame, front_json, to_csv

    found = read_results(directory, storage).front
    if form == "json":
        show(front_json(found).rstrip())
    elif form == "csv":
        show(to_csv(front_frame(found)).rstrip())
    else:
        show_front(found)


def show_front(found: ParetoFront) -> None:
    """Hand out a front as a table; a narrow terminal gets the objectives' columns only."""
    from results.tables import front_rows_for_terminal, main_metrics
    from results.words import metric_heading

    headings, rows = front_rows_for_terminal(found)
    wanted = {objective.metric for objective in found.objectives}
    others = [metric for metric in main_metrics(found.objectives) if metric not in wanted]
    show_table(headings, rows, text=3, spare=[metric_heading(metric) for metric in others])
