"""Scores experts kriged between measured layouts on layouts that were left out.

Usage: python -m scripts.score_expert_layouts [CHIP...]    (needs the extra `silicon`)

A layout is width, inner width, experts picked and held, tensor and expert parallel sizes; it is
left out with all its token counts and routings. Layouts are dealt into five folds, and every fold
is predicted from the other four. Length and noise of the kriging were chosen on fold 1 of B200,
which is not scored. Takes a few minutes of one core. Writes nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from objectives.cost.silicon import FORMATS, SYSTEMS
from objectives.cost.silicon.experts import LAYOUT, kriged_experts, layout_rows, rows_work
from objectives.cost.silicon.tables import newest_table
from scripts.operator_rows import FOLDS, SOURCES, fold_of
from spaces.catalog import chip
from spaces.chip import ChipSpec

_CHOSEN_ON = ("b200", 1)
_LEAST_ROWS = next(source for source in SOURCES if source.op == "experts").minimum_rows


def main() -> None:
    """Run as a command."""
    print(layout_report(sys.argv[1:] or sorted(SYSTEMS)))


def layout_report(names: Sequence[str]) -> str:
    """The table of errors on the chips of these names."""
    scored = pd.concat([one for name in names for one in _errors(chip(name))], ignore_index=True)
    lines = ["| experts | rows | median error % | mean % | 90 % of rows within % |"]
    lines.append("| --- | --- | --- | --- | --- |")
    for column in ("chip", "engine", "format", "routing"):
        lines += [_line(str(name), mine["error"]) for name, mine in scored.groupby(column)]
    return "\n".join([*lines, _line("all", scored["error"])])


def _line(name: str, error: pd.Series[float]) -> str:
    told = (
        f"{100 * error.median():.1f} | {100 * error.mean():.1f} | {100 * error.quantile(0.9):.0f}"
    )
    return f"| {name} | {len(error):,} | {told} |"


def _errors(one: ChipSpec) -> Iterator[pd.DataFrame]:
    for engine in ("sglang", "trtllm", "vllm"):
        table = newest_table(one.name, engine, "moe_perf")
        if table is None:
            continue
        for (name, _), rows in table.rows.groupby(["moe_dtype", "kernel_source"], sort=True):
            known = name in FORMATS and one.peak_flops(one.compute_dtype(FORMATS[str(name)]))
            if known and len(rows) >= _LEAST_ROWS:
                frame = layout_rows(rows)
                yield from _fold_errors(one, engine, str(name), frame)


def _fold_errors(
    one: ChipSpec, engine: str, name: str, frame: pd.DataFrame
) -> Iterator[pd.DataFrame]:
    folds = np.array([fold_of(key) for key in frame[list(LAYOUT)].itertuples(False, None)])
    dtype = FORMATS[name]
    for fold in range(FOLDS):
        left, others = frame[folds == fold], frame[folds != fold]
        if (one.name, fold) == _CHOSEN_ON or left.empty or others.empty:
            continue
        tokens, seconds = (others[c].to_numpy(dtype=np.float64) for c in ("num_tokens", "latency"))
        known = kriged_experts(one, dtype, rows_work(one, dtype, others), tokens, seconds * 1e-3)
        left = left[left["num_tokens"].isin(known.tokens)]
        asked = left["num_tokens"].to_numpy(dtype=np.float64)
        found = known.row_seconds(rows_work(one, dtype, left), asked)
        error = np.abs(found * 1e3 / left["latency"].to_numpy(dtype=np.float64) - 1.0)
        told = {"chip": one.name, "engine": engine, "format": name, "error": error}
        yield pd.DataFrame(told).assign(routing=left["distribution"].to_numpy())


if __name__ == "__main__":
    main()
