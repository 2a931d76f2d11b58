"""servefront validate"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from optimizer.cli.counting import counted
from optimizer.cli.talk import say, show, show_json, show_table

if TYPE_CHECKING:
    from objectives.validation import Validation

# The tables of a page: title and grouping.
SECTIONS: Mapping[str, tuple[str, ...]] = {
    "By mode and speculation": ("mode", "speculation"),
    "By engine": ("engine", "mode"),
    "By chip": ("chip", "mode"),
    "By model": ("model", "mode"),
    "By load": ("load", "mode"),
}


def validate(
    points: Annotated[Path, typer.Argument(metavar="POINTS.csv", help="Measured serving points.")],
    by: Annotated[
        str | None,
        typer.Option(
            metavar="KEY,...",
            help="Groups too: model, family, chip, engine, mode, precision, speculation, load, "
            "workload, image.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
    grade: Annotated[str, typer.Option(metavar="A,...", help="Quality grades to score.")] = "A",
    markdown: Annotated[
        Path | None,
        typer.Option(metavar="PAGE.md", help="Write tables between the marks of a page."),
    ] = None,
) -> None:
    """Hold predictions against measured points: errors, coverage, and what was not answered."""
    from objectives.validation import (
        Validation,
        check_groupings,
        document,
        predict_all,
        read_points,
    )
    from results.accuracy_page import between_marks
    from spaces.documents import read_text

    keys = check_groupings(by.split(",")) if by else ()
    if markdown is not None:
        between_marks(read_text(markdown), "", str(markdown))
    grades = tuple(one.strip() for one in grade.split(","))
    file = read_points(points, grades)
    told = Validation(file, grades, predict_all(file.points, counted("simulated")))
    if markdown is not None:
        _write(markdown, told, f"servefront validate {points.name}")
    found = document(told, keys)
    if as_json:
        show_json(found)
    else:
        _show(found)


def _write(page: Path, told: Validation, command: str) -> None:
    from objectives.validation import document
    from results.accuracy_page import between_marks, tables
    from results.files import write_atomically
    from spaces.documents import read_text

    found = {title: document(told, by) for title, by in SECTIONS.items()}
    text = between_marks(read_text(page), tables(found, command), str(page))
    write_atomically(page, text)
    say(f"wrote the tables of {page}")


def _show(found: dict[str, Any]) -> None:
    from results.accuracy_page import HEADINGS, rank_lines, score_rows

    overall = found["overall"]
    show(
        f"{found['points']['rows']} rows, {overall['n']} of grade {', '.join(found['grades'])} in "
        f"scope, {overall['answered']} answered ({overall['answered_pct']:.1f} %)"
    )
    for reason, rows in found["left_out"].items():
        show(f"left out: {rows} rows, {reason}")
    for reason, rows in overall["refused"].items():
        show(f"refused: {rows} rows, {reason}")
    lines = score_rows("all", overall)
    for group in found["groups"]:
        lines += score_rows(" ".join(group["group"].values()), group)
    show_table(HEADINGS, lines, text=2)
    for line in rank_lines(overall["rank_correlation"]):
        show(line)
