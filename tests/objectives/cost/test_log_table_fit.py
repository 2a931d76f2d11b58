"""The fit finds tables it was given, through noise and accidents."""

from __future__ import annotations

import numpy as np
import pytest

from scripts.log_table_fit import Grid, as_tables, design_matrix, fit, penalty_matrix

GRIDS = (
    Grid(("x", "y"), (np.array([0.0, 2.0, 4.0]), np.array([0.0, 1.0, 2.0, 3.0]))),
    Grid(("x",), (np.array([0.0, 1.0, 2.0, 3.0, 4.0]),)),
)


def test_a_known_surface_comes_back_in_spite_of_outliers() -> None:
    rng = np.random.default_rng(1)
    shape = {"x": rng.uniform(0, 4, 4000), "y": rng.uniform(0, 3, 4000)}
    truth = 0.3 * shape["x"] - 0.1 * shape["x"] * shape["y"]
    noisy = truth + rng.normal(scale=0.01, size=4000)
    noisy[::20] += 2.0
    design = design_matrix(GRIDS, shape, 4000)
    entries = fit(design, noisy, penalty_matrix(GRIDS))
    tables = as_tables(GRIDS, entries)
    found = sum(np.asarray(table.at(shape)) for table in tables)
    assert np.median(np.abs(found - truth)) < 0.01
    assert design @ entries == pytest.approx(found, abs=2e-3)


def test_entries_without_rows_are_settled_by_smoothness() -> None:
    grid = (Grid(("x",), (np.array([0.0, 1.0, 2.0, 3.0]),)),)
    x = np.repeat([0.0, 1.0], 500)
    design = design_matrix(grid, {"x": x}, 1000)
    entries = fit(design, 1.0 + 0.5 * x, penalty_matrix(grid))
    assert entries[:2] == pytest.approx([1.0, 1.5], abs=0.01)
    assert entries[2] == pytest.approx(2.0, abs=0.1)
