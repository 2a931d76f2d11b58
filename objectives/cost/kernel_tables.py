"""Kernel times fitted to measurements: a roofline times a smooth table, from `kernels/*.json`.

    seconds = (smooth maximum of both bounds + floor) x exp(sum of tables at log2 of the shape)

A table is linear between its knots along each axis and constant beyond the outer ones, so far
outside the measured range the kernel keeps the efficiency of its edge.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from objectives.cost.kernel_work import Number, Work
from objectives.cost.step_costs import Floats
from spaces.chip import ChipSpec

FOLDER = Path(__file__).parent / "kernels"
# Table entries are stored as integers: thousandths of a natural logarithm.
LOG_UNIT = 1000.0


@dataclass(frozen=True, slots=True)
class LogTable:
    """Logarithms over the grid of its axes' knots; `values` has one dimension an axis."""

    axes: tuple[str, ...]
    knots: tuple[Floats, ...]
    values: Floats

    def at(self, shape: Mapping[str, Number]) -> Number:
        """Interpolated values; scalars and equally long vectors may be mixed."""
        return interpolate(self.values, self.knots, [shape[axis] for axis in self.axes])


@dataclass(frozen=True, slots=True)
class FittedKernel:
    """One kernel family of one engine on one chip, and where its rows came from.

    `read_from` names the measured table where the tables hold its rows themselves, not a fit.
    `spared_s` of the benchmark's seconds a step does not take.
    """

    op: str
    engine: str
    kernel: str
    dtype: str
    kv: str
    rows: int
    floor_s: float
    tables: tuple[LogTable, ...]
    read_from: str = ""
    spared_s: float = 0.0

    def spans(self, shape: Mapping[str, float]) -> bool:
        """Whether a shape lies within the knots of all its axes that are asked about."""
        return all(
            knots[0] <= shape[axis] <= knots[-1]
            for table in self.tables
            for axis, knots in zip(table.axes, table.knots, strict=True)
            if axis in shape
        )

    def seconds(self, work: Work, fixed: float = 1.0) -> Floats:
        """Benchmark seconds of the work, launch ramp (times `fixed`) included."""
        correction = sum(np.asarray(table.at(work.shape)) for table in self.tables)
        seconds = (work.roofline_s() + fixed * self.floor_s) * np.exp(correction)
        return np.maximum(np.asarray(seconds) - self.spared_s, 0.0)


@dataclass(frozen=True, slots=True)
class KernelSet:
    """All fitted kernels of one chip; `source` says what they were fitted to."""

    chip: str
    kernels: tuple[FittedKernel, ...]
    source: str

    def find(self, op: str, dtype: str, kv: str = "") -> tuple[FittedKernel, ...]:
        """Kernels of an operator in a format, of all engines; empty where none was measured."""
        return tuple(k for k in self.kernels if (k.op, k.dtype, k.kv) == (op, dtype, kv))


def interpolate(values: Floats, knots: Sequence[Floats], points: Sequence[Number]) -> Number:
    """Multilinear interpolation, constant beyond the outer knots.

    Scalar points are contracted first, which leaves a single line for a grid of token counts.

    >>> grid = np.array([[0.0, 1.0], [2.0, 3.0]])
    >>> float(interpolate(grid, [np.array([0.0, 1.0])] * 2, [0.5, 0.25]))
    1.25
    """
    order = sorted(range(len(points)), key=lambda axis: np.ndim(points[axis]))
    left = np.transpose(values, order)
    vectors = [axis for axis in order if np.ndim(points[axis]) > 0]
    for axis in order[: len(order) - len(vectors)]:
        low, share = _place(knots[axis], points[axis])
        left = left[int(low)] * (1 - float(share)) + left[int(low) + 1] * float(share)
    return _along(left, [knots[axis] for axis in vectors], [points[axis] for axis in vectors])


def _along(values: Floats, knots: Sequence[Floats], points: Sequence[Number]) -> Number:
    if not points:
        return float(values)
    if len(points) == 1:
        return np.interp(points[0], knots[0], values)
    places = [_place(k, p) for k, p in zip(knots, points, strict=True)]
    total: Floats = np.zeros(np.shape(points[0]))
    for corner in np.ndindex(*(2,) * len(points)):
        weight: Number = 1.0
        for up, (_, share) in zip(corner, places, strict=True):
            weight = weight * (share if up else 1.0 - share)
        index = tuple(low + up for up, (low, _) in zip(corner, places, strict=True))
        total = total + weight * values[index]
    return total


def _place(knots: Floats, points: Number) -> tuple[np.ndarray, np.ndarray]:
    """The knot below each point, and how far it is on the way to the next."""
    inside = np.clip(points, knots[0], knots[-1])
    low = np.clip(np.searchsorted(knots, inside, side="right") - 1, 0, len(knots) - 2)
    return low, (inside - knots[low]) / (knots[low + 1] - knots[low])


def kernel_sets() -> list[str]:
    """Names of the chips with fitted kernels."""
    return sorted(path.stem for path in FOLDER.glob("*.json"))


def kernels_of(chip: ChipSpec) -> KernelSet | None:
    """The chip's own fitted kernels, else those its `efficiency` names, else none."""
    for name in (chip.name, chip.efficiency):
        if (FOLDER / f"{name}.json").is_file():
            return load_kernels(name)
    return None


@lru_cache(maxsize=32)
def load_kernels(name: str, folder: Path = FOLDER) -> KernelSet:
    """The fitted kernels of the chip called `name`."""
    data = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    kernels = tuple(_kernel(one) for one in data["kernels"])
    return KernelSet(name, kernels, f"{data['source']}, fitted {data['date']}")


def _kernel(one: Mapping[str, Any]) -> FittedKernel:
    names = ("op", "engine", "kernel", "dtype", "kv", "rows")
    return FittedKernel(
        **{name: one[name] for name in names},
        floor_s=one["floor_us"] * 1e-6,
        tables=tuple(_table(table) for table in one["tables"]),
    )


def _table(table: Mapping[str, Any]) -> LogTable:
    knots = tuple(np.array(line, dtype=np.float64) for line in table["knots"])
    values = np.array(table["values"], dtype=np.float64) / LOG_UNIT
    return LogTable(tuple(table["axes"]), knots, values.reshape([len(line) for line in knots]))
