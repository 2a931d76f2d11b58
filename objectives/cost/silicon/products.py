"""Matrix products read from measured tables instead of from their fit.

Between measured shapes a time over its bounds is interpolated in logarithms; gaps of the grid of
shapes take the fitted kernel's.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pandas as pd

from objectives.cost.kernel_tables import FittedKernel, KernelSet, LogTable, load_kernels
from objectives.cost.kernel_work import gemm_work
from objectives.cost.silicon.tables import FORMATS, Table, check_measured, newest_table
from spaces.chip import ChipSpec


@lru_cache(maxsize=16)
def measured_kernels(chip: ChipSpec) -> KernelSet:
    """The kernels of products of a chip as they were measured; `InputError` where none were."""
    check_measured(chip.name)
    fitted = load_kernels(chip.name)
    engines = sorted({kernel.engine for kernel in fitted.kernels})
    tables = {engine: newest_table(chip.name, engine, "gemm_perf") for engine in engines}
    kernels = (_as_measured(kernel, chip, tables[kernel.engine]) for kernel in fitted.kernels)
    return KernelSet(chip.name, tuple(kernels), "the measured tables")


def _as_measured(kernel: FittedKernel, chip: ChipSpec, table: Table | None) -> FittedKernel:
    """The kernel with a table of all measured shapes; the fit fills the gaps of the grid."""
    if table is None:
        return kernel
    rows = table.rows
    mine = rows[(rows["kernel_source"] == kernel.kernel) & (rows["gemm_dtype"] == kernel.dtype)]
    if mine.empty:
        return kernel
    seconds = mine.groupby(["m", "n", "k"])["latency"].median() * 1e-3
    sizes = [np.unique(seconds.index.get_level_values(axis)) for axis in ("m", "n", "k")]
    full = pd.MultiIndex.from_product(sizes)
    m, n, k = (full.get_level_values(level).to_numpy(dtype=np.float64) for level in range(3))
    work = gemm_work(chip, m, n, k, FORMATS[kernel.dtype])
    known = seconds.reindex(full).to_numpy(dtype=np.float64)
    filled = np.where(np.isfinite(known) & (known > 0), known, kernel.seconds(work))
    logs = np.log(filled / (np.asarray(work.roofline_s()) + kernel.floor_s))
    knots = tuple(np.log2(size.astype(np.float64)) for size in sizes)
    measured = LogTable(("m", "n", "k"), knots, logs.reshape([len(size) for size in sizes]))
    return FittedKernel(
        *(kernel.op, kernel.engine, kernel.kernel, kernel.dtype, kernel.kv),
        *(len(seconds), kernel.floor_s, (measured,), table.name),
    )
