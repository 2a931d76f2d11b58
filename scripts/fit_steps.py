"""Fits the constants of a step to measured engine steps, and scores them on left-out layouts.

Usage: python -m scripts.fit_steps [DATA]    (DATA: default $SERVEFRONT_DATA)

Steps of Qwen3-32B in bf16 under vLLM 0.20.1, tensor parallel 1, 2, 4 and 8, chip inferred B300.
Each constant stays near what was set by hand before unless the steps speak against it (a prior of
a factor 1.3). Constants fitted on two layouts are scored on the other two,
and the other way round; those of all four are printed for `overheads.yaml`. Writes nothing.
"""

from __future__ import annotations

import argparse
import hashlib
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from objectives.calibration.measured_files import read_table
from objectives.calibration.shrunk import Floats
from objectives.calibration.steps import (
    NAMES,
    StepRows,
    constants_of,
    fit_constants,
    log_errors,
    step_rows,
)
from objectives.cost.machine import Machine, machine_of
from spaces.catalog import chip

ROOT = Path(__file__).parent.parent
# By hand from single kernels and steps, in the order of NAMES.
_PRIOR = np.array([2.0, 1.5, 20.0, 310.0, 0.85, 0.8])
_NOISE = 0.05


def main() -> None:
    """Run as a command."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    data = Path(os.environ.get("SERVEFRONT_DATA", ROOT.parent / "shared"))
    parser.add_argument("data", type=Path, nargs="?", default=data)
    told, steps = measured_steps(parser.parse_args().data)
    machine = machine_of(chip(steps.chip), steps.engine)
    print(told)
    for taught, scored in (((1, 4), (2, 8)), ((2, 8), (1, 4))):
        found = fit_constants(_of_tp(steps, taught), machine, _PRIOR, noise=_NOISE)
        print(f"fitted on tp {taught}: {_told(found)}")
        _print_errors(_of_tp(steps, scored), machine, found)
    everything = fit_constants(steps, machine, _PRIOR, noise=_NOISE)
    print(f"fitted on all: {_told(everything)}")
    _print_errors(steps, machine, everything)
    shipped = constants_of(machine)
    print(f"shipped: {_told(shipped)}")
    _print_errors(steps, machine, shipped)


def measured_steps(data: Path) -> tuple[str, StepRows]:
    """Steps of the dense model, one row for each kind of batch; before them, which they are."""
    rows = read_table(data / "measured" / "forward_pass_steps.csv")
    dense = rows.frame["model"] == "Qwen/Qwen3-32B"
    rows.frame = rows.frame[dense].reset_index(drop=True)
    sha256 = hashlib.sha256(rows.frame.to_csv(index=False).encode()).hexdigest()
    return f"rows {len(rows.frame)}, sha256 {sha256}", next(step_rows(rows))


def _of_tp(steps: StepRows, sizes: tuple[int, ...]) -> StepRows:
    return replace(steps, frame=steps.frame[steps.frame["tp"].isin(sizes)])


def _told(constants: Floats) -> str:
    return ", ".join(f"{n} {v:.3g}" for n, v in zip(NAMES, constants, strict=True))


def _print_errors(steps: StepRows, machine: Machine, constants: Floats) -> None:
    error = np.exp(log_errors(steps, machine, constants)) - 1
    frame: pd.DataFrame = steps.frame.assign(error=error)
    for (tp, phase), mine in frame.groupby(["tp", "phase"]):
        off = mine["error"]
        print(
            f"  tp {tp} {phase}: {len(mine)} steps, median error {off.abs().median():.1%}, "
            f"bias {off.median():+.1%}"
        )


if __name__ == "__main__":
    main()
