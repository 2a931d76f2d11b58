"""Least-squares fit of the log tables of `objectives.cost.kernel_tables`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_factor, cho_solve
from scipy.sparse import csr_matrix, diags, eye, hstack, kron, vstack

from objectives.cost.kernel_tables import LOG_UNIT, LogTable

Floats = npt.NDArray[np.float64]

SMOOTHNESS = 0.1
_SHRINKAGE = 1e-2
# Log errors beyond this count linearly: single autotuning accidents must not bend the table.
_ROBUST = 0.03
_ROUNDS = 4


@dataclass(frozen=True, slots=True)
class Grid:
    """Axes of one table and their knots (log2 of what they measure)."""

    axes: tuple[str, ...]
    knots: tuple[Floats, ...]

    @property
    def cells(self) -> int:
        """How many entries the table has."""
        return int(np.prod([len(line) for line in self.knots]))


def fit(design: csr_matrix, target: Floats, penalty: Floats) -> Floats:
    """Entries of all tables: squares of log errors near zero, their size beyond (Huber).

    Bending between neighbouring knots and distance from zero are penalised (P-splines of degree
    one, Eilers and Marx 1996), which also settles entries no row touches.
    """
    weight = np.ones(len(target))
    entries = np.zeros(design.shape[1])
    for _ in range(_ROUNDS):
        weighted = diags(weight) @ design
        normal = (weighted.T @ design).toarray() + penalty
        entries = cho_solve(cho_factor(normal), weighted.T @ target)
        misses = np.abs(target - design @ entries)
        weight = _ROBUST / np.maximum(misses, _ROBUST)
    return np.asarray(entries)


def design_matrix(grids: Sequence[Grid], shape: Mapping[str, Floats], rows: int) -> csr_matrix:
    """Weights of every table entry in every row, as multilinear interpolation gives them."""
    return hstack([_table_design(grid, shape, rows) for grid in grids]).tocsr()


def penalty_matrix(grids: Sequence[Grid]) -> Floats:
    """Squared bending along every axis of every table, and a little shrinkage."""
    blocks = [_table_penalty(grid) for grid in grids]
    total = np.zeros((sum(len(b) for b in blocks),) * 2)
    start = 0
    for block in blocks:
        end = start + len(block)
        total[start:end, start:end] = block
        start = end
    return total


def as_tables(grids: Sequence[Grid], entries: Floats) -> list[LogTable]:
    """The fitted entries, rounded as they will be stored."""
    tables, start = [], 0
    for grid in grids:
        values = np.rint(entries[start : start + grid.cells] * LOG_UNIT) / LOG_UNIT
        start += grid.cells
        tables.append(
            LogTable(grid.axes, grid.knots, values.reshape([len(line) for line in grid.knots]))
        )
    return tables


def _table_design(grid: Grid, shape: Mapping[str, Floats], rows: int) -> csr_matrix:
    index, weight = np.zeros((rows, 1), dtype=np.int64), np.ones((rows, 1))
    for axis, knots in zip(grid.axes, grid.knots, strict=True):
        points = np.broadcast_to(shape[axis], rows)
        inside = np.clip(points, knots[0], knots[-1])
        low = np.clip(np.searchsorted(knots, inside, side="right") - 1, 0, len(knots) - 2)
        share = ((inside - knots[low]) / (knots[low + 1] - knots[low]))[:, None]
        index = np.hstack(
            [index * len(knots) + low[:, None], index * len(knots) + low[:, None] + 1]
        )
        weight = np.hstack([weight * (1 - share), weight * share])
    where = np.repeat(np.arange(rows), weight.shape[1])
    return csr_matrix((weight.ravel(), (where, index.ravel())), shape=(rows, grid.cells))


def _table_penalty(grid: Grid) -> Floats:
    sizes = [len(line) for line in grid.knots]
    rough = [csr_matrix(eye(grid.cells) * _SHRINKAGE)]
    for axis, size in enumerate(sizes):
        if size < 3:
            continue
        bending = diags([1.0, -2.0, 1.0], [0, 1, 2], shape=(size - 2, size))
        operator = csr_matrix(eye(1))
        for other, length in enumerate(sizes):
            operator = csr_matrix(kron(operator, bending if other == axis else eye(length)))
        rough.append(operator * SMOOTHNESS)
    stacked = vstack(rough).tocsr()
    return np.asarray((stacked.T @ stacked).toarray())
