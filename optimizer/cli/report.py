"""servefront report"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from optimizer.cli.talk import say


def report(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A study directory.")],
    storage: Annotated[
        str | None, typer.Option(metavar="URL", help="The study's storage, if it has a password.")
    ] = None,
) -> None:
    """Write report.html, front.png and the tables of a study again."""
    from optimizer.directory import read_results, write_review, write_tables

    results = read_results(directory, storage)
    write_tables(directory, results)
    write_review(directory, results)
    say(f"wrote {directory}/report.html, front.png and the tables")
