"""What steps cost, of all pools, as arrays of the state."""

from __future__ import annotations

from typing import Any

import numpy as np

from objectives.cost.step_costs import COEFFICIENTS, AttentionTables, Floats, StepCosts


def cost_arrays(costs: list[StepCosts]) -> dict[str, Any]:
    """The pools' costs side by side, padded to the longest grid, most stages and most seats."""
    stages = max(cost.stages for cost in costs)
    columns = max(len(cost.grid) for cost in costs)
    seats = max(len(cost.graph_tokens) for cost in costs)
    arrays: dict[str, Any] = {
        "grid": np.zeros((len(costs), columns), np.int64),
        "token_s": np.zeros((len(costs), stages, columns)),
        "expert_s": np.zeros((len(costs), stages, columns)),
        "graph_tokens": np.zeros((len(costs), seats), np.int64),
        "coefficients": np.zeros((len(costs), stages, len(COEFFICIENTS))),
        "line_s": np.zeros((len(costs), columns)),
        "exchange_s": np.zeros((len(costs), columns)),
    }
    arrays["decode_table_s"] = _stacked([c.tables.decode_s if c.tables else None for c in costs])
    arrays["mixed_table_s"] = _stacked([_mixed(c.tables) for c in costs])
    arrays["prefill_table_s"] = _stacked([c.tables.prefill_s if c.tables else None for c in costs])
    for pool, cost in enumerate(costs):
        pad = columns - len(cost.grid)
        rise = np.arange(1, pad + 1)  # the grid goes on, its tables stay level
        arrays["grid"][pool] = np.concatenate([cost.grid, cost.grid[-1] + rise])
        for name in ("token_s", "expert_s"):
            table = np.pad(getattr(cost, name), ((0, 0), (0, pad)), mode="edge")
            arrays[name][pool, : cost.stages] = table
        if cost.split is not None:
            arrays["line_s"][pool] = np.pad(cost.split.line_s, (0, pad), mode="edge")
            arrays["exchange_s"][pool] = np.pad(cost.split.exchange_s, (0, pad), mode="edge")
        arrays["graph_tokens"][pool, : len(cost.graph_tokens)] = cost.graph_tokens
        for column, name in enumerate(COEFFICIENTS):
            arrays["coefficients"][pool, : cost.stages, column] = getattr(cost, name)
    return arrays


def _mixed(tables: AttentionTables | None) -> Floats | None:
    if tables is None:
        return None
    return tables.decode_s if tables.mixed_decode_s is None else tables.mixed_decode_s


def _stacked(tables: list[Floats | None]) -> Floats:
    """Tables side by side, padded with their last entries; zeros where there is none."""
    shapes = [(1, 1) if table is None else table.shape for table in tables]
    rows, columns = max(shape[0] for shape in shapes), max(shape[1] for shape in shapes)
    stacked = np.zeros((len(tables), rows, columns))
    for place, table in enumerate(tables):
        if table is not None:
            missing = ((0, rows - table.shape[0]), (0, columns - table.shape[1]))
            stacked[place] = np.pad(table, missing, mode="edge")
    return stacked
