"""servefront validate"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from optimizer.cli.counting import counted
from optimizer.cli.talk import say, show, show_json, show_table

if TYPE_CHECKING:
    from objectives.validation import PointsFile, Predictions, Validation
    from spaces.calibration import Calibration


def validate(
    points: Annotated[
        list[Path],
        typer.Argument(
            metavar="POINTS...",
            help="Measured points: a CSV, or results of vLLM bench serve, SGLang bench_serving or "
            "AIPerf.",
        ),
    ],
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
    plan: Annotated[
        Path | None,
        typer.Option(metavar="PLAN.yaml", help="What results in JSON were measured on."),
    ] = None,
    cross_validate: Annotated[
        bool,
        typer.Option(
            "--cross-validate",
            help="Score each model family on a chip with a fit to all other such pairs.",
        ),
    ] = False,
    calibration: Annotated[
        Path | None,
        typer.Option(metavar="CAL.yaml", help="Predict under this calibration."),
    ] = None,
    markdown: Annotated[
        Path | None,
        typer.Option(metavar="PAGE.md", help="Write tables between the marks of a page."),
    ] = None,
) -> None:
    """Hold predictions against measured points: errors, coverage, and what was not answered."""
    from objectives.validation import Validation, check_groupings, document
    from objectives.validation.files import read_files
    from results.accuracy_page import between_marks
    from spaces.documents import read_text
    from spaces.plan import load_plan

    keys = check_groupings(by.split(",")) if by else ()
    if markdown is not None:
        between_marks(read_text(markdown), "", str(markdown))
    grades = tuple(one.strip() for one in grade.split(","))
    file = read_files(points, grades, None if plan is None else load_plan(plan))
    predictions, used = _predicted(file, cross_validate, calibration)
    told = Validation(file, grades, predictions, cross_validate, used)
    if markdown is not None:
        names = " ".join(path.name for path in points)
        how = " --cross-validate" if cross_validate else ""
        _write(markdown, told, f"servefront validate {names}{how} --markdown {markdown.name}")
    found = document(told, keys)
    if as_json:
        show_json(found)
    else:
        _show(found)


def _predicted(
    file: PointsFile, cross_validate: bool, path: Path | None
) -> tuple[Predictions, Calibration | None]:
    """The predictions, and the calibration they were made under unless each fold had its own."""
    from objectives.calibrated import shipped_calibration
    from objectives.calibration import cross_validated
    from objectives.validation import predict_all
    from spaces.calibration import load_calibration
    from spaces.errors import InputError

    if cross_validate and path is not None:
        raise InputError(
            "a cross-validation fits calibrations of its own",
            key="--calibration",
            value=str(path),
            remedy="leave out one of the two options",
        )
    if cross_validate:
        return cross_validated(file.points, counted("simulated")), None
    used = shipped_calibration() if path is None else load_calibration(path)
    return predict_all(file.points, counted("simulated"), used), used


def _write(page: Path, told: Validation, command: str) -> None:
    from objectives.validation import document
    from results.accuracy_page import SECTIONS, between_marks, tables
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
        f"scope, {overall['answered']} answered ({overall['answered_pct']:.1f} %); {found['how']}"
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
