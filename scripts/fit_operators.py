"""Fits kernel times to measured kernels and scores them on shapes that were left out.

Usage: python -m scripts.fit_operators WHEEL [DATA]    (DATA: default $SERVEFRONT_DATA)

WHEEL is aiconfigurator-core 0.12.0 from PyPI (Apache-2.0; `pip download --no-deps
aiconfigurator-core==0.12.0`), whose operator tables are read. Needs the extra `silicon`, which
installs the same tables: experts between measured layouts are scored on them. Whole shapes, say
all token counts of one matrix, are dealt into five folds. Every fold is predicted by a fit of the
other four; the fit shipped in `objectives/cost/kernels/` is the one without fold 0, so fold 0
stays unseen. Takes some ten minutes. Writes the tables (those of products, which steps use, into
the package; the others into `scripts/kernels/`), `docs/accuracy_operators.md`, and prints its
tables.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from objectives.cost.exchanges import FILE as EXCHANGE_FILE
from objectives.cost.kernel_tables import FOLDER, LOG_UNIT, FittedKernel, LogTable
from objectives.cost.silicon import SYSTEMS
from scripts.fit_exchanges import exchange_document, exchange_report
from scripts.log_table_fit import Floats, as_tables, design_matrix, fit, penalty_matrix
from scripts.operator_grids import GRIDS
from scripts.operator_report import UNSHIPPED, Score, document, sample_errors
from scripts.operator_rows import CHIPS, FOLDS, Group, groups
from scripts.score_expert_layouts import layout_report
from spaces.catalog import chip

ROOT = Path(__file__).parent.parent
COMMAND = "python -m scripts.fit_operators WHEEL"
SOURCE = "operator tables of aiconfigurator-core 0.12.0 (PyPI, Apache-2.0), latest engine versions"
DATE = "2026-12-01"
# More rows than this teach a fit nothing: they are thinned evenly.
_ROWS_OF_A_FIT = 12000


@dataclass(frozen=True, slots=True)
class Fitted:
    """A group's shipped kernel, and predictions of rows by fits that did not see their shapes."""

    kernel: FittedKernel
    predicted_us: Floats


@dataclass(frozen=True, slots=True)
class ChipReport:
    """What fitting one chip gave; rows not fitted are counted by reason."""

    scores: list[Score]
    matched: pd.DataFrame
    left_out: dict[str, int]


def main() -> None:
    """Run as a command."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    data = Path(os.environ.get("SERVEFRONT_DATA", ROOT.parent / "shared"))
    parser.add_argument("wheel", type=Path)
    parser.add_argument("data", type=Path, nargs="?", default=data)
    arguments = parser.parse_args()
    samples = arguments.data / "peer" / "aiconfigurator" / "op_latency_samples.csv"
    told = _fit_all(arguments.wheel, samples)
    exchanges = exchange_document(arguments.data / "measured")
    EXCHANGE_FILE.write_text(exchanges, encoding="utf-8")
    text = document(
        [score for one in told for score in one.scores],
        pd.concat([one.matched for one in told], ignore_index=True),
        _summed(one.left_out for one in told),
        layout_report(sorted(SYSTEMS)),
        exchange_report(arguments.data / "measured"),
    )
    (ROOT / "docs" / "accuracy_operators.md").write_text(text, encoding="utf-8")
    print(text)


def _fit_all(wheel: Path, samples: Path) -> list[ChipReport]:
    """Reports of all chips, two fitted at a time."""
    with ProcessPoolExecutor(2) as pool:
        waiting = [pool.submit(fit_chip, wheel, samples, system) for system in CHIPS]
        return [one.result() for one in waiting]


def fit_chip(wheel: Path, samples: Path, system: str) -> ChipReport:
    """Writes a chip's file; scores by kernel, and errors of the sampled rows."""
    table = pd.read_csv(samples, low_memory=False)
    report = ChipReport([], pd.DataFrame(), {})
    matched: list[pd.DataFrame] = []
    entries: list[tuple[Group, FittedKernel, Score]] = []
    for source, group in groups(wheel, system, chip(CHIPS[system]), report.left_out):
        fitted = fit_group(group)
        errors = np.abs(fitted.predicted_us / group.frame["us"].to_numpy() - 1.0)
        score = Score.of(group, errors)
        matched.append(sample_errors(table, source, group, fitted.predicted_us))
        entries.append((group, fitted.kernel, score))
        print(score.line(), flush=True)
    name = CHIPS[system]
    for folder, shipped in ((FOLDER, True), (UNSHIPPED, False)):
        text = _chip_document(name, entries, shipped=shipped)
        (folder / f"{name}.json").write_text(text, encoding="utf-8")
    scores = [score for _, _, score in entries]
    return replace(report, scores=scores, matched=pd.concat(matched, ignore_index=True))


def _summed(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for one in counts:
        total.update(one)
    return dict(total)


def fit_group(group: Group) -> Fitted:
    """Fits without each fold in turn; the one without fold 0 is the kernel to ship."""
    grids = GRIDS[group.op]
    seconds = group.frame["us"].to_numpy() * 1e-6
    folds = group.frame["fold"].to_numpy()
    rows = len(seconds)
    floor_s = round(0.9e6 * float(seconds.min()), 2) * 1e-6
    base = np.asarray(group.work.roofline_s()) + floor_s
    target = np.log(seconds / base)
    shape = {key: np.asarray(value) for key, value in group.work.shape.items()}
    design, penalty = design_matrix(grids, shape, rows), penalty_matrix(grids)
    logs = np.zeros(rows)
    tables: list[LogTable] = []
    for fold in range(FOLDS):
        others = np.flatnonzero(folds != fold)
        others = others[:: max(1, len(others) // _ROWS_OF_A_FIT)]
        entries = fit(design[others], target[others], penalty)
        left = folds == fold
        logs[left] = design[left] @ entries
        tables = tables or as_tables(grids, entries)
    kernel = FittedKernel(
        *(group.op, group.engine, group.kernel, group.dtype, group.kv),
        *(int(np.sum(folds != 0)), floor_s, tuple(tables)),
    )
    return Fitted(kernel, base * np.exp(logs) * 1e6)


def _chip_document(
    name: str, entries: list[tuple[Group, FittedKernel, Score]], *, shipped: bool
) -> str:
    """The JSON of one chip, of products or of the rest: provenance first, one line a table.

    The fingerprint is that of the rows of all its kernels.
    """
    prints = "".join(group.fingerprint for group, _, _ in entries)
    head = {
        "chip": name,
        "source": SOURCE,
        "date": DATE,
        "command": COMMAND,
        "fingerprint": hashlib.sha256(prints.encode()).hexdigest(),
        "unseen": f"shapes of fold 0 of {FOLDS}",
    }
    lines = [f" {json.dumps(key)}: {json.dumps(value)}," for key, value in head.items()]
    kernels = ",\n".join(
        _kernel_line(group, kernel, score)
        for group, kernel, score in entries
        if (kernel.op == "gemm") == shipped
    )
    return "{\n" + "\n".join(lines) + f'\n "kernels": [\n{kernels}\n ]\n}}\n'


def _kernel_line(group: Group, kernel: FittedKernel, score: Score) -> str:
    entry = {
        "op": kernel.op,
        "engine": kernel.engine,
        "kernel": kernel.kernel,
        "dtype": kernel.dtype,
        "kv": kernel.kv,
        "rows": kernel.rows,
        "fingerprint": group.fingerprint[:16],
        "left_out_median_error": round(score.median, 4),
        "floor_us": round(kernel.floor_s * 1e6, 2),
        "tables": [
            {
                "axes": table.axes,
                "knots": [[round(float(knot), 4) for knot in line] for line in table.knots],
                "values": [round(float(v) * LOG_UNIT) for v in table.values.ravel()],
            }
            for table in kernel.tables
        ],
    }
    return "  " + json.dumps(entry, separators=(",", ":"))


if __name__ == "__main__":
    main()
