"""servefront calibrate"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from optimizer.cli.counting import counted
from optimizer.cli.talk import say, show

if TYPE_CHECKING:
    from spaces.calibration import Calibration


def calibrate(
    points: Annotated[
        list[Path],
        typer.Argument(
            metavar="POINTS...",
            help="Measured points: a CSV, or results of vLLM bench serve, SGLang bench_serving or "
            "AIPerf.",
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
    """Fit the cost model to measured points; a job names the result under `calibration`."""
    from datetime import date

    from objectives.calibration import calibrated
    from objectives.validation.files import read_files
    from results.files import write_atomically
    from spaces.plan import load_plan

    deployed = None if plan is None else load_plan(plan)
    grades = tuple(one.strip() for one in grade.split(","))
    file = read_files(points, grades, deployed)
    names = " ".join(path.name for path in points)
    with_plan = f" --plan {plan.name}" if plan else ""
    without = "" if pair_offsets else " --no-pair-offsets"
    found = calibrated(
        file,
        command=f"servefront calibrate {names}{with_plan}{without} --out {out.name}",
        fitted=date.today().isoformat(),
        pair_offsets=pair_offsets,
        progress=counted("simulated"),
    )
    write_atomically(out, found.to_yaml())
    _tell(found)
    say(f"wrote {out}; a job takes it with calibration: {out}")


def _tell(found: Calibration) -> None:
    for note in found.notes:
        show(note)
    for path, value in found.constants.items():
        show(f"{path}: {value:g}")
    for offset in found.offsets:
        named = (*offset.models, offset.chip, offset.vendor, offset.engine, offset.weights)
        words = " ".join(word for word in named if word)
        show(f"steps of {words}: x {offset.factor:.3f} ({offset.points} points)")
