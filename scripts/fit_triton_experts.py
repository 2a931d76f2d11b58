"""Fits the law of routed experts to the portable Triton kernel, where chips have better ones.

Usage: python -m scripts.fit_triton_experts    (needs the extra `silicon`)

Rows are those that sglang 0.5.14's tables call sglang_fused_moe_triton, routing balanced, up to
8,192 tokens and slices of 64 and more. Shares of bandwidth and of compute are fitted by least
squares on logarithms (`routed_experts_s`), large errors counting linearly; the fixed time is the
tenth percentile of layouts that a chip would read in 3 us, at 1 and 2 tokens. Prints what stands
as `experts.triton` in `objectives/cost/efficiency/`, with the median |ln error|. Writes nothing.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from objectives.cost.kernel_work import ACTIVATION_BYTES
from objectives.cost.overheads import load_overheads
from objectives.cost.silicon.tables import FORMATS, SYSTEMS, measured_tables, tables_of
from objectives.cost.step_costs import Floats
from spaces.catalog import chip
from spaces.precision import BYTES_PER_WEIGHT

VERSION, KERNEL = "0.5.14", "sglang_fused_moe_triton"
CHIPS = ("b200", "b300", "gb200", "gb300")
MOST_TOKENS, NARROWEST, FEW_TOKENS, SHORT_READ_S = 8192, 64, 2, 3e-6
START = (0.6, 0.2, 20e-6)


def main() -> None:
    """Run as a command."""
    for name in CHIPS:
        table = tables_of(measured_tables(), SYSTEMS[name], "sglang", "moe_perf")[VERSION]
        print(f"{name}:")
        for dtype in ("bfloat16", "fp8_block"):
            print(f"  {FORMATS[dtype]}: {fitted(name, dtype, table)}")


def fitted(name: str, dtype: str, table: pd.DataFrame) -> str:
    """Shares, fixed time, rows and their median |ln error|, as text."""
    rows = table[(table.kernel_source == KERNEL) & (table.moe_dtype == dtype)]
    rows = rows[(rows.distribution == "balanced") & (rows.num_tokens <= MOST_TOKENS)]
    rows = rows[rows.inter_size / rows.moe_tp_size >= NARROWEST]
    move_s, multiply_s = _bounds_s(name, dtype, rows)
    seconds = rows.latency.to_numpy() / 1e3
    log_seconds = np.log(seconds)

    def errors(logs: Floats) -> Floats:
        memory, compute, fixed_s = np.exp(logs)
        found: Floats = np.log(move_s / memory + multiply_s / compute + fixed_s) - log_seconds
        return found

    fit = least_squares(errors, np.log(START), loss="soft_l1", f_scale=0.2)
    memory, compute, _ = np.exp(fit.x)
    short = (rows.num_tokens <= FEW_TOKENS) & (move_s < SHORT_READ_S)
    latency_us = 1e6 * np.quantile(seconds[short], 0.1)
    shares = f"{{memory: {memory:.3f}, compute: {compute:.3f}, latency_us: {latency_us:.1f}}}"
    return f"{shares}  # {len(rows)} rows, {np.median(np.abs(errors(fit.x))):.2f}"


def _bounds_s(name: str, dtype: str, rows: pd.DataFrame) -> tuple[Floats, Floats]:
    """Seconds that bandwidth and multiplication take at the chip's peaks, as the law has them."""
    spec, form, overheads = chip(name), FORMATS[dtype], load_overheads()
    width = BYTES_PER_WEIGHT[form]
    inner = (rows.inter_size / rows.moe_tp_size).to_numpy()
    weights = 3.0 * rows.hidden_size.to_numpy() * inner
    pairs = (rows.num_tokens * rows.topk / rows.moe_ep_size).to_numpy()
    held = (rows.num_experts / rows.moe_ep_size).to_numpy()
    per_pair = rows.hidden_size.to_numpy() * (width + ACTIVATION_BYTES) + 4 * inner
    moved = np.minimum(held, np.maximum(pairs, 1.0)) * weights * width + pairs * per_pair
    narrowness = 1.0 + overheads.grouped.half_width / inner
    rate = spec.peak_flops(spec.compute_dtype(form)) * overheads.sustained.compute
    return moved / spec.hbm_bytes_per_s, 2.0 * weights * pairs * narrowness / rate


if __name__ == "__main__":
    main()
