"""The measured tables: where they are, and which version of an engine counts.

They are those of the package aiconfigurator-core (PyPI, Apache-2.0): parquet files of measured
kernels by system, engine and version.
"""

from __future__ import annotations

import importlib.resources
import importlib.util
import io
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources.abc import Traversable

import pandas as pd

from spaces.errors import InputError
from spaces.precision import Dtype, KvDtype

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
KV_FORMATS: dict[KvDtype, str] = {"bf16": "bfloat16", "fp8": "fp8"}


@dataclass(frozen=True, slots=True)
class Table:
    """Measured rows of one kind of operator under one version of an engine."""

    engine: str
    version: str
    rows: pd.DataFrame

    @property
    def name(self) -> str:
        """Engine and version, as told to people."""
        return f"{self.engine} {self.version}"


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


def check_measured(chip: str) -> None:
    """Raise an `InputError` unless the extra is installed and has tables of the chip."""
    measured_tables()
    if chip not in SYSTEMS:
        raise InputError(
            "measured operator costs exist for some chips only",
            key="operator_costs",
            value=f"measured ({chip})",
            remedy=f"use operator_costs: fitted, or one of {', '.join(sorted(SYSTEMS))}",
        )


@lru_cache(maxsize=128)
def newest_table(chip: str, engine: str, file: str) -> Table | None:
    """The newest table called `file` of an engine (or library) on a chip; None without one."""
    found = tables_of(measured_tables(), SYSTEMS[chip], engine, file)
    if not found:
        return None
    version = newest(found)
    return Table(engine, version, found[version])


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
