"""Shares of the peaks that ship are those of the measured tables, where these are installed."""

from __future__ import annotations

import pytest

from objectives.cost.chip_efficiency import load_efficiency
from scripts.score_efficiency import product_lines
from spaces.catalog import chip

pytest.importorskip("aiconfigurator_core", reason="the extra `silicon` is not installed")


@pytest.mark.parametrize("name", ["b200", "h200", "l40s"])
def test_products_reach_what_the_tables_say(name: str) -> None:
    row = load_efficiency(name).gemm.formats["bf16"]
    lines = list(product_lines(chip(name), "bf16", row))
    assert len(lines) == len(row.memory) + len(row.compute)
    for line in lines:
        ships, found = (float(cell) for cell in line.split("|")[5:7])
        assert found == pytest.approx(ships, abs=0.0011)
