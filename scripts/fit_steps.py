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
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.optimize import least_squares

from objectives.cost import RankBatch, step_seconds
from objectives.cost.build import costs_on
from objectives.cost.machine import Machine, machine_of
from objectives.cost.overheads import Overheads
from spaces.catalog import chip, model
from spaces.plan import Pool, Precision

Floats = npt.NDArray[np.float64]

ROOT = Path(__file__).parent.parent
NAMES = ("small_us", "gap_us", "eager_layer_us", "step_us", "compute", "kv_read")
# By hand from single kernels and steps, in the order of NAMES; and how far off each may be.
_PRIOR = np.array([2.0, 1.5, 20.0, 310.0, 0.85, 0.8])
_PRIOR_LOG = np.log(1.3)
_NOISE = 0.05
_ROWS_OF_A_FIT = 240


def main() -> None:
    """Run as a command."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    data = Path(os.environ.get("SERVEFRONT_DATA", ROOT.parent / "shared"))
    parser.add_argument("data", type=Path, nargs="?", default=data)
    steps = measured_steps(parser.parse_args().data)
    print(f"rows {len(steps)}, sha256 {fingerprint(steps)}")
    for taught, scored in (((1, 4), (2, 8)), ((2, 8), (1, 4))):
        found = fit(steps[steps["tp"].isin(taught)])
        print(f"fitted on tp {taught}: {_told(found)}")
        _print_errors(steps[steps["tp"].isin(scored)], found)
    everything = fit(steps)
    print(f"fitted on all: {_told(everything)}")
    _print_errors(steps, everything)
    print(f"shipped: {_told(shipped())}")
    _print_errors(steps, shipped())


def measured_steps(data: Path) -> pd.DataFrame:
    """Steps of the dense model, one row for each kind of batch."""
    table = pd.read_csv(data / "measured" / "forward_pass_steps.csv")
    return table[table["model"] == "Qwen/Qwen3-32B"].reset_index(drop=True)


def fingerprint(steps: pd.DataFrame) -> str:
    """SHA-256 of the rows."""
    return hashlib.sha256(steps.to_csv(index=False).encode()).hexdigest()


def shipped() -> Floats:
    """The constants of `overheads.yaml`, in the order of `NAMES`."""
    told = _machine().overheads
    engine = told.engines.by_engine["vllm"]
    return np.array(
        [
            *(told.kernels.small_us, told.kernels.gap_us),
            *(engine.eager_layer_us, engine.step_us),
            *(told.sustained.compute, told.sustained.kv_read),
        ]
    )


def fit(steps: pd.DataFrame) -> Floats:
    """Constants that fit the steps and stay near the prior (soft-L1 on log errors)."""
    start = np.log(_PRIOR)
    rows = steps.iloc[:: max(1, len(steps) // _ROWS_OF_A_FIT)]

    def misses(logs: Floats) -> Floats:
        errors = log_errors(rows, np.exp(logs)) / _NOISE
        soft = np.sign(errors) * np.sqrt(2 * (np.sqrt(1 + errors**2) - 1))
        return np.concatenate([soft, (logs - start) / _PRIOR_LOG])

    top = np.full(len(start), np.inf)
    top[-2:] = 0.0
    return np.exp(np.asarray(least_squares(misses, start, bounds=(-np.inf, top)).x))


def log_errors(steps: pd.DataFrame, constants: Floats) -> Floats:
    """Logarithm of predicted over measured, in the order of the rows."""
    machine = _machine()
    varied = replace(machine, overheads=_varied(machine.overheads, constants))
    logs = pd.Series(0.0, index=steps.index)
    for tp, mine in steps.groupby("tp"):
        pool = Pool(role="aggregated", chip="b300", tp=int(str(tp)), max_num_seqs=128)
        found = costs_on(varied, model("qwen3-32b"), pool, Precision())
        predicted = [
            1e3 * step_seconds(found, [_batch(row)])[0] for row in mine.to_dict("records")
        ]
        logs.loc[mine.index] = np.log(np.array(predicted) / mine["latency_ms"].to_numpy())
    return np.asarray(logs, dtype=np.float64)


def _machine() -> Machine:
    return machine_of(chip("b300"), "vllm")


def _varied(told: Overheads, constants: Sequence[float] | Floats) -> Overheads:
    small, gap, eager, step, compute, kv_read = (float(value) for value in constants)
    engine = told.engines.by_engine["vllm"]
    engine = engine.model_copy(update={"eager_layer_us": eager, "step_us": step})
    return told.model_copy(
        update={
            "kernels": told.kernels.model_copy(update={"small_us": small, "gap_us": gap}),
            "sustained": told.sustained.model_copy(
                update={"compute": compute, "kv_read": kv_read}
            ),
            "engines": told.engines.model_copy(update={"by_engine": {"vllm": engine}}),
        }
    )


def _batch(row: Mapping[Hashable, Any]) -> RankBatch:
    decodes, chunks = int(row["decode_requests"]), int(row["prefill_requests"])
    contexts = (round(row["decode_kv_tokens"] / decodes),) * decodes if decodes else ()
    new, cached = int(row["prefill_tokens"]), int(row["prefill_kv_tokens"])
    return RankBatch(contexts, ((new // chunks, cached // chunks),) * chunks if chunks else ())


def _told(constants: Floats) -> str:
    return ", ".join(f"{n} {v:.3g}" for n, v in zip(NAMES, constants, strict=True))


def _print_errors(steps: pd.DataFrame, constants: Floats) -> None:
    ratio = np.exp(log_errors(steps, constants)) - 1
    for (tp, phase), mine in steps.assign(error=ratio).groupby(["tp", "phase"]):
        error = mine["error"]
        print(
            f"  tp {tp} {phase}: {len(mine)} steps, median error {error.abs().median():.1%}, "
            f"bias {error.median():+.1%}"
        )


if __name__ == "__main__":
    main()
