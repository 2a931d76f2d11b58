"""Products' shares of the peaks, recomputed from the measured tables beside those that ship.

Usage: python -m scripts.score_efficiency [CHIP...]    (needs the extra `silicon`)

`objectives/cost/efficiency/CHIP.yaml` holds medians over matrices n x k of 4,096 rows and columns
and more, the fastest kernel of all engines counting: of bandwidth at a token count each, of
compute at one each and, as `8192`, at 4,096 tokens and more; compute never falls with tokens.
Prints each figure as it ships and as the tables give it, with the fingerprint of the rows. Writes
nothing.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from itertools import accumulate

import numpy as np
import pandas as pd

from objectives.cost.chip_efficiency import GemmRow, load_efficiency
from objectives.cost.silicon import SYSTEMS
from objectives.cost.silicon.tables import newest_table
from spaces.catalog import chip
from spaces.chip import ChipSpec
from spaces.precision import BYTES_PER_WEIGHT, Dtype

# Formats of the tables, by ours.
_TABLES: dict[Dtype, str] = {"bf16": "bfloat16", "fp8": "fp8_block", "nvfp4": "nvfp4"}
_LEAST_SIDE, _MANY_TOKENS = 4096, 8192
_COLUMNS = ["m", "n", "k", "latency"]


def main() -> None:
    """Run as a command."""
    print("| chip | format | share of | tokens | ships | tables | rows, sha256 |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name in sys.argv[1:] or sorted(SYSTEMS):
        one = chip(name)
        for dtype, row in load_efficiency(one.efficiency).gemm.formats.items():
            if dtype in _TABLES:
                for line in product_lines(one, dtype, row):
                    print(line)


def product_lines(one: ChipSpec, dtype: Dtype, row: GemmRow) -> Iterator[str]:
    """Rows of the table for one format of a chip; none where no product in it was measured."""
    rows = _fastest(one, _TABLES[dtype])
    if rows.empty:
        return
    width = BYTES_PER_WEIGHT[dtype]
    seconds = rows["latency"] * 1e-3
    moved = rows["n"] * rows["k"] * width + rows["m"] * (rows["k"] * width + 2 * rows["n"])
    memory = moved / seconds / one.hbm_bytes_per_s
    compute = 2.0 * rows["m"] * rows["n"] * rows["k"] / seconds
    compute /= one.peak_flops(one.compute_dtype(dtype))
    told = f"{len(rows):,}, {hashlib.sha256(rows.to_csv(index=False).encode()).hexdigest()[:12]}"
    head = f"| {one.name} | {dtype}"
    for tokens, ships in row.memory.items():
        found = memory[rows["m"] == tokens].median()
        yield f"{head} | bandwidth | {tokens} | {ships:g} | {found:.3f} | {told} |"
    medians = [_compute_at(compute, rows["m"], tokens) for tokens in row.compute]
    for (tokens, ships), found in zip(row.compute.items(), accumulate(medians, max), strict=True):
        yield f"{head} | compute | {tokens} | {ships:g} | {found:.3f} | {told} |"


def _compute_at(compute: pd.Series[float], tokens: pd.Series[int], wanted: int) -> float:
    many = wanted == _MANY_TOKENS
    mask = tokens >= _LEAST_SIDE if many else tokens == wanted
    return float(np.median(compute[mask]))


def _fastest(one: ChipSpec, name: str) -> pd.DataFrame:
    """The fastest kernel of all engines for each large product in a format of the tables."""
    tables = [
        newest_table(one.name, engine, "gemm_perf") for engine in ("sglang", "trtllm", "vllm")
    ]
    rows = pd.concat([table.rows for table in tables if table is not None])
    large = (rows["n"] >= _LEAST_SIDE) & (rows["k"] >= _LEAST_SIDE)
    mine = rows[large & (rows["gemm_dtype"] == name)]
    return mine.groupby(["m", "n", "k"])["latency"].min().reset_index()[_COLUMNS]


if __name__ == "__main__":
    main()
