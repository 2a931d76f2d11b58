"""servefront calibrate"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from optimizer.cli.counting import counted
from optimizer.cli.talk import say, show, show_table

if TYPE_CHECKING:
    from spaces.calibration import Calibration, TableRead


def calibrate(
    points: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILES...",
            help="What was measured, several at once: serving points (a CSV, or results of vLLM "
            "bench serve, SGLang bench_serving or AIPerf), a CSV of operators, a CSV of steps.",
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="CAL.yaml", help="Where the calibration goes.")],
    plan: Annotated[
        Path | None,
        typer.Option(metavar="PLAN.yaml", help="What results in JSON were measured on."),
    ] = None,
    grade: Annotated[str, typer.Option(metavar="A,...", help="Quality grades to fit.")] = "A",
    pair_offsets: Annotated[
        bool,
        typer.Option(help="An offset of its own for each measured model, chip and engine."),
    ] = True,
) -> None:
    """Fit the cost model to what was measured; a job names the result under `calibration`."""
    from datetime import date

    from objectives.calibrated import shipped_calibration
    from objectives.calibration import calibrated, sorted_files, with_tables
    from objectives.validation.files import read_files
    from results.files import write_atomically
    from spaces.calibration import Calibration
    from spaces.plan import load_plan

    deployed = None if plan is None else load_plan(plan)
    grades = tuple(one.strip() for one in grade.split(","))
    served, tables = sorted_files(points)
    names = " ".join(path.name for path in points)
    with_plan = f" --plan {plan.name}" if plan else ""
    without = "" if pair_offsets else " --no-pair-offsets"
    told = {
        "command": f"servefront calibrate {names}{with_plan}{without} --out {out.name}",
        "fitted": date.today().isoformat(),
    }
    if served:
        file = read_files(served, grades, deployed)
        found = calibrated(
            file,
            **told,
            pair_offsets=pair_offsets,
            measured=with_tables(Calibration(), tables),
            progress=counted("simulated"),
        )
    else:
        found = with_tables(shipped_calibration(), tables).model_copy(update=told)
        say("no serving points among the files: offsets and intervals are the shipped ones")
    write_atomically(out, found.to_yaml())
    for table in found.tables:
        _tell_table(table)
    if served:
        _tell(found)
    say(f"wrote {out}; a job takes it with calibration: {out}")


def _tell(found: Calibration) -> None:
    for note in found.notes:
        show(note)
    general = {
        p: v for p, v in found.constants.items() if not p.startswith(("operators.", "chips."))
    }
    for path, value in general.items():
        show(f"{path}: {value:g}")
    for offset in found.offsets:
        named = (*offset.models, offset.chip, offset.vendor, offset.engine, offset.weights)
        words = " ".join(word for word in named if word)
        show(f"steps of {words}: x {offset.factor:.3f} ({offset.points} points)")


def _tell_table(table: TableRead) -> None:
    """What a table of operators or steps was fitted with, and what was left out of it."""
    used = sum(fit.rows for fit in table.fits)
    show(f"{table.file}: {table.rows} rows of {table.kind}, {used} distinct ones fitted")
    show_table(
        ["chip", "engine", "what", "rows", "median error % before", "after (in sample)"],
        [
            (
                fit.chip,
                fit.engine or "any",
                fit.what,
                str(fit.rows),
                f"{100 * fit.error_before:.1f}",
                f"{100 * fit.error_after:.1f}",
            )
            for fit in table.fits
        ],
    )
    for reason, count in table.left_out.items():
        show(f"left out: {count} {reason}")
