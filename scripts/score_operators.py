"""Scores the fitted kernels on sampled measured rows, apart by whether their shape was fitted.

Usage: python -m scripts.score_operators [DATA]    (DATA: default $SERVEFRONT_DATA)

Rows are those of `peer/aiconfigurator/op_latency_samples.csv` that were measured
(`measured_table` or `engine_exact`) and that nobody doubts (`suspect` empty). The kernels were
fitted without the shapes of fold 0 (`scripts.fit_operators`), so rows of that fold are
unseen. A row that names no library kernel is predicted by the fastest one of its engine. Every
row is counted: scored, or left out with the reason. Takes some seconds. Writes nothing.
"""

from __future__ import annotations

import argparse
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from objectives.cost.kernel_tables import FOLDER, FittedKernel, KernelSet, load_kernels
from objectives.cost.silicon import FORMATS
from scripts.operator_report import RENAMED, SAMPLED, UNSHIPPED, sound
from scripts.operator_rows import CHIPS, KV_BYTES, SOURCES, Source, numbers
from scripts.operator_rows import fold_of as fold
from spaces.catalog import chip

ROOT = Path(__file__).parent.parent
# The newest tables of the wheel, which were fitted.
_VERSIONS = {"sglang": ("0.5.14",), "trtllm": ("1.3.0rc20",), "vllm": ("0.24.0",)}


def main() -> None:
    """Run as a command."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    data = Path(os.environ.get("SERVEFRONT_DATA", ROOT.parent / "shared"))
    parser.add_argument("data", type=Path, nargs="?", default=data)
    print(report(*scored_rows(parser.parse_args().data)))


def scored_rows(data: Path) -> tuple[int, pd.DataFrame, Counter[str]]:
    """Rows taken; `op`, `unseen` and relative `error` of those scored; the others by reason."""
    path = data / "peer" / "aiconfigurator" / "op_latency_samples.csv"
    rows = sound(pd.read_csv(path, low_memory=False))
    reasons: Counter[str] = Counter()
    scored = pd.concat(list(_scores(rows, reasons)), ignore_index=True)
    return len(rows), scored, reasons


def _scores(rows: pd.DataFrame, reasons: Counter[str]) -> Iterator[pd.DataFrame]:
    """Errors of the rows of each table that some shipped kernel predicts."""
    sources = {SAMPLED[source.op]: source for source in SOURCES}
    for (op, system, engine, dtype), mine in rows.groupby(
        ["op", "system", "backend", "dtype"], sort=True, dropna=False
    ):
        if op not in sources:
            reasons[f"{op}: no such kernel is fitted"] += len(mine)
        elif str(system) not in CHIPS or str(dtype) not in FORMATS:
            reasons[f"{system} {dtype}: chip or format is not fitted"] += len(mine)
        else:
            source = sources[str(op)]
            yield from _scores_of(source, str(system), str(engine), str(dtype), mine, reasons)


def _scores_of(
    source: Source,
    system: str,
    engine: str,
    dtype: str,
    rows: pd.DataFrame,
    reasons: Counter[str],
) -> Iterator[pd.DataFrame]:
    current = rows[rows["version"].isin(_VERSIONS[engine])]
    reasons["of another engine version"] += len(rows) - len(current)
    folder = FOLDER if source.op == "gemm" else UNSHIPPED
    known = load_kernels(CHIPS[system], folder)
    asked = current.assign(kernel=current["kernel"].fillna(""))
    asked = asked.assign(kv=asked["kv_dtype"].fillna("") if source.kv else "")
    for (kernel, kv), mine in asked.groupby(["kernel", "kv"], sort=True):
        found = _kernels(known, source.op, engine, dtype, str(kv), str(kernel))
        if not found:
            reasons["of a kernel with too few rows to be fitted"] += len(mine)
            continue
        frame = _as_measured(source, mine)
        work = source.work(chip(CHIPS[system]), FORMATS[dtype], KV_BYTES.get(str(kv), 2.0), frame)
        predicted_us = np.min([one.seconds(work) for one in found], axis=0) * 1e6
        shapes = frame[list(source.shape)].itertuples(index=False, name=None)
        yield pd.DataFrame(
            {
                "op": source.op,
                "unseen": [fold(numbers(shape)) == 0 for shape in shapes],
                "error": np.abs(predicted_us / mine["latency_us"].to_numpy() - 1),
            }
        )


def _kernels(
    known: KernelSet, op: str, engine: str, dtype: str, kv: str, kernel: str
) -> list[FittedKernel]:
    found = [one for one in known.find(op, dtype, kv) if one.engine == engine]
    return [one for one in found if not kernel or one.kernel == kernel]


def _as_measured(source: Source, rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with the column names of the measured tables; samples have no window."""
    names = {RENAMED.get(name, name): name for name in (*source.shape, *source.point)}
    frame = rows.assign(window_size=0).drop(columns=[n for n in names.values() if n in rows])
    kept = rows[[n for n in names if n in rows]].rename(columns=names)
    return pd.concat([frame[[c for c in frame if c not in kept]], kept], axis=1)


def report(taken: int, scored: pd.DataFrame, reasons: Counter[str]) -> str:
    """Errors by operator, of unseen and of fitted shapes, and what was left out."""
    lines = [
        f"{taken:,} measured rows nobody doubts; {len(scored):,} scored",
        "",
        "| operator | unseen rows | median error % | mean % | fitted rows | median error % |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for op in (*scored["op"].unique(), "all"):
        mine = scored if op == "all" else scored[scored["op"] == op]
        new, old = (100 * mine.loc[mine["unseen"] == is_new, "error"] for is_new in (True, False))
        lines.append(
            f"| {op} | {len(new)} | {new.median():.1f} | {new.mean():.1f} "
            f"| {len(old)} | {old.median():.1f} |"
        )
    left = [f"- {count:,}: {reason}" for reason, count in sorted(reasons.items()) if count]
    return "\n".join([*lines, "", "Rows not scored:", "", *left])


if __name__ == "__main__":
    main()
