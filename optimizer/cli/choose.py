"""servefront choose"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from optimizer.cli.talk import say, show

if TYPE_CHECKING:
    from objectives.goals import Objective


def choose(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A study directory.")],
    knee: Annotated[
        bool, typer.Option("--knee", help="The best compromise (the default).")
    ] = False,
    least: Annotated[
        str | None, typer.Option("--min", metavar="METRIC", help="The least of a metric.")
    ] = None,
    most: Annotated[
        str | None, typer.Option("--max", metavar="METRIC", help="The most of a metric.")
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(metavar="'METRIC<=VALUE'", help="A condition to meet; repeatable."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Where to write the plan.", show_default="stdout")
    ] = None,
    storage: Annotated[
        str | None, typer.Option(metavar="URL", help="The study's storage, if it has a password.")
    ] = None,
) -> None:
    """Choose one point of a study and write its plan."""
    from objectives.goals import parse_constraint
    from optimizer.cli.hints import export_hints
    from optimizer.directory import read_results
    from results.choice import choose as chosen
    from results.files import write_atomically
    from results.tables import main_metrics
    from results.words import describe_load, describe_plan, metric_heading, value_text

    by = _by(knee, least, most)
    conditions = [parse_constraint(text) for text in where or ()]
    results = read_results(directory, storage)
    point = chosen(results.settled, results.front, where=conditions, by=by)
    say(f"point {point.plan.point_id}: {describe_plan(point.plan)}, {describe_load(point.plan)}")
    for metric in main_metrics(results.objectives):
        say(f"  {metric_heading(metric)}: {value_text(point, metric)}")
    if out is None:
        show(point.plan.to_yaml().rstrip())
        return
    write_atomically(out, point.plan.to_yaml())
    first, *others = export_hints(point.plan, str(out))
    say(f"wrote {out}; next: {first}" if not others else f"wrote {out}; {first}")
    for line in others:
        say(line)


def _by(knee: bool, least: str | None, most: str | None) -> Literal["knee"] | Objective:
    from objectives.goals import parse_objective
    from spaces.errors import InputError

    if sum((knee, least is not None, most is not None)) > 1:
        raise InputError(
            "a point is chosen by one of --knee, --min and --max",
            remedy="keep one of them and turn the others into --where",
        )
    if least is not None:
        return parse_objective(f"minimize {least}")
    if most is not None:
        return parse_objective(f"maximize {most}")
    return "knee"
