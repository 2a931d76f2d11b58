"""The tables of achieved fractions."""

from __future__ import annotations

import numpy as np
import pytest

import objectives.cost
from objectives.cost import efficiency_tables, estimated_blocks
from objectives.cost.chip_efficiency import (
    Block,
    ChipEfficiency,
    figure_of_engine,
    load_efficiency,
    row_of_engine,
)
from objectives.cost.machine import machine_of
from objectives.cost.overheads import load_overheads
from spaces import catalog
from spaces.chip import ChipSpec
from spaces.model import ModelSpec

MEASURED = ["a100", "b200", "b300", "gb200", "gb300", "h100", "h200", "l40s"]
MEASURED += ["rtx-pro-6000-server"]
BORROWED = ["gaudi3", "generic", "h800", "mi300x", "mi325x", "mi350x", "mi355x", "mi455x"]
BORROWED += ["rtx-4090", "sn40l", "sn50", "vr200"]
NAMES = sorted(MEASURED + BORROWED)


def test_public_names_are_sorted() -> None:
    assert objectives.cost.__all__ == sorted(objectives.cost.__all__)
    assert all(hasattr(objectives.cost, name) for name in objectives.cost.__all__)


def test_there_is_a_table_for_each_documented_name() -> None:
    assert efficiency_tables() == NAMES


def _blocks(document: ChipEfficiency) -> list[Block]:
    values = [getattr(document, name) for name in ChipEfficiency.model_fields]
    return [value for value in values if isinstance(value, Block)]


@pytest.mark.parametrize("name", NAMES)
def test_every_block_says_where_it_is_from(name: str) -> None:
    table = load_efficiency(name)
    for block in _blocks(table):
        assert block.source
        assert block.checked >= "2026-11-30"
    if name in BORROWED:
        assert table.like
        assert {block.status for block in _blocks(table)} == {"estimate"}
    else:
        assert table.gemm.status == table.decode_attention.status == "measured"


def test_estimated_blocks_that_a_model_asks_for_are_named(models: dict[str, ModelSpec]) -> None:
    dense, sparse = models["llama"], catalog.model("deepseek-v3.2")
    assert estimated_blocks("h100", dense) == estimated_blocks("a100", dense) == []
    assert estimated_blocks("h100", sparse) == ["sparse_attention"]
    assert estimated_blocks("b200", sparse) == []
    assert estimated_blocks("a100", models["linear"]) == ["linear_attention", "all_to_all"]
    assert "gemm" in estimated_blocks("vr200", dense)
    assert "kernel_time" in estimated_blocks("mi455x", dense)  # borrowed over two tables


@pytest.mark.parametrize("name", NAMES)
def test_fractions_are_fractions(name: str) -> None:
    table = load_efficiency(name)
    tokens = np.array([0.0, 1.0, 3.0, 100.0, 1e6])
    for row in table.gemm.formats.values():
        for fraction in (row.memory_fraction(tokens), row.compute_fraction(tokens)):
            assert (fraction > 0.1).all()
            assert (fraction < 1).all()
        assert row.memory_fraction(tokens[:2]) == pytest.approx(row.stream)
    for experts in table.experts.formats.values():
        assert 0 < experts.compute < 1
        assert 0.4 < experts.memory < 1


@pytest.mark.parametrize("name", NAMES)
def test_all_reduce_has_a_time_for_each_size_that_grows_with_it(name: str) -> None:
    table = load_efficiency(name).all_reduce
    for us in table.ranks.values():
        assert len(us) == len(table.message_bytes)
        assert us[-1] > 10 * us[0]


def test_an_engine_without_a_row_takes_the_median_of_the_others() -> None:
    rows = load_efficiency("b200").decode_attention.kv["bf16"]
    assert row_of_engine(rows, "vllm") == rows["vllm"]
    assert row_of_engine(rows, "atom").large == sorted(r.large for r in rows.values())[1]
    assert figure_of_engine({"vllm": 1.0, "sglang": 3.0}, "trtllm") == 2.0


def test_amd_kernels_carry_their_factor(chips: dict[str, ChipSpec]) -> None:
    slow, fast = (machine_of(chips[name], "vllm") for name in ("mi355x", "b200"))
    assert slow.launch_s(10.0) == pytest.approx(1.5 * fast.launch_s(10.0))
    assert slow.small_kernel_s == pytest.approx(1.5 * fast.small_kernel_s)


def test_asynchronous_scheduling_takes_a_fraction_of_a_millisecond() -> None:
    for engine in load_overheads().engines.by_engine.values():
        assert 200 <= engine.step_us <= 400
        assert 4 <= engine.request_us <= 10
