"""Matrix products read from measured tables instead of from their fit (extra `silicon`).

The tables are those of the package aiconfigurator-core (PyPI, Apache-2.0): parquet files of
measured kernels by system, engine and version. Between measured shapes a time over its bounds is
interpolated in logarithms; gaps of the grid of shapes take the fitted kernel's.
"""

from __future__ import annotations

import importlib.resources
import importlib.util
import io
from collections.abc import Mapping
from functools import lru_cache
from importlib.resources.abc import Traversable

import numpy as np
import pandas as pd

from objectives.cost.kernel_tables import FittedKernel, KernelSet, LogTable, load_kernels
from objectives.cost.kernel_work import gemm_work
from spaces.chip import ChipSpec
from spaces.errors import InputError
from spaces.precision import Dtype

PACKAGE = "aiconfigurator_core"
# The package's systems, by the catalogue's chip.
SYSTEMS = {
    "h200": "h200_sxm",
    "b200": "b200_sxm",
    "b300": "b300_sxm",
    "h100": "h100_sxm",
    "a100": "a100_sxm",
    "gb200": "gb200",
    "gb300": "gb300",
    "l40s": "l40s",
    "rtx-pro-6000-server": "rtx_pro_6000_server",
}
# fp8_block is the fp8 of checkpoints (128 x 128 blocks); "fp8" of the tables scales whole tensors.
FORMATS: dict[str, Dtype] = {
    "bfloat16": "bf16",
    "fp8": "fp8",
    "fp8_block": "fp8",
    "nvfp4": "nvfp4",
    "int4_wo": "int4",
    "w4a16_mxfp4": "mxfp4",
    "w4a8_mxfp4_mxfp8": "mxfp4",
}
_GEMM_FILE = "gemm_perf"


def measured_tables() -> Traversable:
    """The folder of measured tables; `InputError` where the extra is not installed."""
    if importlib.util.find_spec(PACKAGE) is None:
        raise InputError(
            "measured operator costs need the extra `silicon`",
            key="operator_costs",
            value="measured",
            remedy="pip install 'servefront[silicon]', or use operator_costs: fitted",
        )
    return importlib.resources.files(PACKAGE) / "systems" / "data"


def tables_of(data: Traversable, system: str, engine: str, file: str) -> dict[str, pd.DataFrame]:
    """The tables called `file` of an engine on a system, by the engine's version."""
    folders = [kind / engine for kind in (data / system).iterdir() if kind.is_dir()]
    versions = [v for folder in folders if folder.is_dir() for v in folder.iterdir()]
    paths = [(version.name, version / f"{file}.parquet") for version in versions]
    return {
        version: pd.read_parquet(io.BytesIO(path.read_bytes()))
        for version, path in paths
        if path.is_file()
    }


def newest(tables: Mapping[str, pd.DataFrame]) -> str:
    """The latest version; one of less than half the most rows is not taken."""
    most = max(len(table) for table in tables.values())
    return max((v for v, table in tables.items() if len(table) > most / 2), key=_version_key)


def _version_key(version: str) -> list[tuple[int, str]]:
    parts = version.replace("rc", ".rc.").split(".")
    return [(int(part), "") if part.isdigit() else (-1, part) for part in parts]


@lru_cache(maxsize=16)
def measured_kernels(chip: ChipSpec) -> KernelSet:
    """The kernels of products of a chip as they were measured; `InputError` where none were."""
    if chip.name not in SYSTEMS:
        raise InputError(
            "measured operator costs exist for some chips only",
            key="operator_costs",
            value=f"measured ({chip.name})",
            remedy=f"use operator_costs: fitted, or one of {', '.join(sorted(SYSTEMS))}",
        )
    data, fitted = measured_tables(), load_kernels(chip.name)
    engines = sorted({kernel.engine for kernel in fitted.kernels})
    tables = {e: tables_of(data, SYSTEMS[chip.name], e, _GEMM_FILE) for e in engines}
    rows = {engine: found[newest(found)] for engine, found in tables.items() if found}
    return KernelSet(
        chip.name,
        tuple(
            _as_measured(kernel, chip, rows[kernel.engine]) if kernel.engine in rows else kernel
            for kernel in fitted.kernels
        ),
    )


def _as_measured(kernel: FittedKernel, chip: ChipSpec, table: pd.DataFrame) -> FittedKernel:
    """The kernel with a table of all measured shapes; the fit fills the gaps of the grid."""
    mine = table[(table["kernel_source"] == kernel.kernel) & (table["gemm_dtype"] == kernel.dtype)]
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
        *(len(seconds), kernel.floor_s, (measured,)),
    )
