"""Chips: facts in the units of their keys, read out in SI units."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from spaces import catalog
from spaces.chip import ChipSpec
from spaces.documents import validated
from spaces.errors import InputError
from spaces.precision import ComputeDtype, Dtype


def fact(value: float, **more: object) -> dict[str, object]:
    return {"value": value, "source": "made_up", **more}


def chip_data(**changes: object) -> dict[str, Any]:
    """The data of a valid chip whose every figure is different, with some keys changed."""
    return {
        "name": "test-chip",
        "title": "Test chip",
        "vendor": "Nobody",
        "checked": "2026-11-30",
        "efficiency": "generic",
        "bf16_tflops": fact(2),
        "fp8_tflops": fact(4),
        "hbm_gb": fact(80),
        "hbm_gb_per_s": fact(3000),
        "chips_per_node": fact(4),
        "scaleup_chips": fact(72),
        "scaleup_gb_per_s": fact(900),
        "scaleout_gb_per_s": fact(50),
        "host_link_gb_per_s": fact(63),
        "host_dram_gb": fact(250),
        "tdp_w": fact(700),
        "sources": {"made_up": "for this test"},
        **changes,
    }


def a_chip(**changes: object) -> ChipSpec:
    return validated(ChipSpec, chip_data(**changes), "chip.yaml")


def test_figures_come_out_in_si_units() -> None:
    chip = a_chip()
    assert chip.peak_flops("bf16") == 2e12
    assert chip.hbm_bytes == 80e9
    assert chip.hbm_bytes_per_s == 3e12
    assert chip.scaleup_bytes_per_s == 900e9
    assert chip.scaleout_bytes_per_s == 50e9
    assert chip.host_link_bytes_per_s == 63e9
    assert (chip.node_size, chip.scaleup_size) == (4, 72)


@pytest.mark.parametrize(
    ("key", "ask"),
    [
        ("bf16_tflops", lambda chip: chip.peak_flops("bf16")),
        ("scaleup_gb_per_s", lambda chip: chip.scaleup_bytes_per_s),
        ("scaleout_gb_per_s", lambda chip: chip.scaleout_bytes_per_s),
        ("host_link_gb_per_s", lambda chip: chip.host_link_bytes_per_s),
        ("host_dram_gb", lambda chip: chip.offload_gb),
        ("chips_per_node", lambda chip: chip.node_size),
        ("memory_levels.ddr.gb_per_s", lambda chip: chip.own_dram_bytes_per_s),
    ],
)
def test_an_unknown_figure_is_told_and_never_zero(
    key: str, ask: Callable[[ChipSpec], float]
) -> None:
    with pytest.raises(InputError) as caught:
        ask(a_chip(**{key: None} if "." not in key else {}))
    assert str(caught.value).startswith(
        f"{key}: the answer needs a figure of test-chip that nobody has published"
    )


def test_power_nobody_has_published_is_absent() -> None:
    assert a_chip(tdp_w=None).power_w is None


def test_memory_of_its_own_takes_offloaded_kv_before_the_hosts() -> None:
    ddr = {"level": "ddr", "gb": fact(1000), "gb_per_s": fact(100, status="estimate")}
    chip = a_chip(memory_levels=[{"level": "sram", "gb": fact(1)}, ddr])
    assert (a_chip().own_dram, a_chip().offload_gb) == (False, 250)
    assert (chip.own_dram, chip.offload_gb, chip.own_dram_bytes_per_s) == (True, 1000, 100e9)
    assert set(chip.facts()) - set(a_chip().facts()) == {
        "memory_levels.sram.gb",
        "memory_levels.ddr.gb",
        "memory_levels.ddr.gb_per_s",
    }
    assert chip.estimates() == ["memory_levels.ddr.gb_per_s"]


def test_a_format_without_units_has_no_peak() -> None:
    assert a_chip().peak_flops("fp4") == 0.0


@pytest.mark.parametrize(
    ("name", "weights", "multiplied_in"),
    [
        ("a100", "bf16", "bf16"),
        ("a100", "fp8", "bf16"),
        ("h100", "fp8", "fp8"),
        ("h100", "nvfp4", "bf16"),
        ("h100", "mxfp4", "bf16"),
        ("b200", "nvfp4", "fp4"),
        ("b200", "int4", "bf16"),
        ("mi355x", "mxfp4", "fp4"),
        ("mi300x", "mxfp4", "bf16"),
    ],
)
def test_weights_are_multiplied_in_a_format_the_chip_has(
    name: str, weights: Dtype, multiplied_in: ComputeDtype
) -> None:
    chip = catalog.chip(name)
    assert chip.compute_dtype(weights) == multiplied_in
    assert chip.peak_flops(chip.compute_dtype(weights)) > 0


def test_power_is_all_in_where_it_is_known_else_the_chips_own_limit() -> None:
    assert a_chip().power_w == 700
    assert a_chip(all_in_w=fact(1370)).power_w == 1370


def test_the_share_of_host_and_cooling_is_drawn_by_an_idle_chip_too() -> None:
    assert a_chip(idle_w=fact(100)).idle_power_w == 100
    assert a_chip(idle_w=fact(100), all_in_w=fact(1370)).idle_power_w == 1370 - 700 + 100


def test_idle_power_that_nobody_has_published_is_the_limit() -> None:
    assert a_chip().idle_power_w == 700
    assert a_chip(tdp_w=None, all_in_w=fact(625)).idle_power_w == 625


def test_estimates_names_the_figures_that_are_not_sure() -> None:
    chip = a_chip(
        hbm_gb_per_s=fact(3000, status="contradictory", alternatives=[2800]),
        usd_per_hour=fact(2, status="estimate"),
        tdp_w=fact(700, status="published"),
    )
    assert chip.estimates() == ["hbm_gb_per_s", "usd_per_hour"]


def test_facts_are_all_figures_by_key() -> None:
    facts = a_chip().facts()
    assert facts["hbm_gb"].value == 80
    assert set(facts) == {key for key, value in chip_data().items() if "value" in value} - {
        "sources"
    }


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"hbm_gb": fact(-1)}, "chip.yaml: hbm_gb.value: "),
        ({"hbm_gb": 80}, "chip.yaml: hbm_gb: "),
        ({"hbm_gb": {"value": 80}}, "chip.yaml: hbm_gb.source: this key is required"),
        ({"hbm_gb": fact(80, notes="x")}, "chip.yaml: hbm_gb.notes: unknown key; did you mean"),
        ({"hbm_tb": fact(1)}, "chip.yaml: hbm_tb: unknown key; did you mean hbm_gb"),
        ({"tdp_w": fact(1, status="guess")}, "chip.yaml: tdp_w.status: "),
    ],
)
def test_a_wrong_figure_is_told_with_its_key(changes: dict[str, object], said: str) -> None:
    with pytest.raises(InputError) as caught:
        a_chip(**changes)
    assert str(caught.value).startswith(said)


def test_chips_can_be_keys() -> None:
    assert {a_chip(): 1}[a_chip()] == 1
