"""Dollars and joules of deployments of unlike chips, spare replicas among them."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from objectives.assess import Assessment, assess
from objectives.cost import power_drawn_kw, power_kw
from objectives.workload import SyntheticSpec, generate
from spaces import catalog
from spaces.documents import validated
from spaces.plan import DeploymentPlan, Load, Pool
from tests.spaces.worlds import site_of

PRICES = {"h200": 2.0, "mi355x": 3.0}
SITE = site_of("deepseek-v3", {"h200": 64, "mi355x": 64})


def served(prefills: int = 1, attention: int = 1) -> Assessment:
    """One user on a prefill pool and a split decode of two kinds of chips."""
    pools = (
        Pool(role="prefill", chip="h200", tp=8, replicas=prefills),
        Pool(role="decode-attention", chip="h200", tp=2, replicas=attention, max_num_seqs=64),
        Pool(role="decode-experts", chip="mi355x", tp=8, ep=8, replicas=attention),
    )
    plan = DeploymentPlan(model="deepseek-v3", topology="prefill-decode+afd", pools=pools)
    data = {"requests": 20, "input_tokens": 500, "output_tokens": 40}
    workload = generate(validated(SyntheticSpec, data, "test"), seed=1)
    return assess(plan.at(Load(concurrency=1)), SITE, workload, prices=PRICES)


def watts(name: str) -> float:
    found = catalog.chip(name).power_w
    assert found is not None
    return found


def test_every_chip_of_every_pool_is_paid_for_and_powered() -> None:
    told = served().metrics
    assert told["chips"] == 8 + 2 + 8
    assert told["usd_per_hour"] == pytest.approx(10 * 2.0 + 8 * 3.0)
    assert told["power_kw"] == pytest.approx((10 * watts("h200") + 8 * watts("mi355x")) / 1e3)


def test_a_token_costs_its_share_of_an_hour_and_of_the_power() -> None:
    told = served().metrics
    rate = told["output_tokens_per_s"]
    assert told["usd_per_m_output_tokens"] == pytest.approx(44.0 / 3600 / rate * 1e6)
    assert told["joules_per_output_token"] == pytest.approx(told["power_drawn_kw"] * 1e3 / rate)


def test_chips_draw_their_limit_in_steps_and_idle_power_between_them() -> None:
    told = served().metrics
    expected_kw = 0.0
    for role, chip, count in (
        ("prefill", "h200", 8),
        ("decode_attention", "h200", 2),
        ("decode_experts", "mi355x", 8),
    ):
        spec = catalog.chip(chip)
        assert spec.tdp_w is not None and spec.idle_w is not None
        idle = watts(chip) - spec.tdp_w.value + spec.idle_w.value
        busy = told[f"{role}_utilization"]
        assert 0.0 < busy < 1.0
        expected_kw += count * (idle + busy * (watts(chip) - idle)) / 1e3
    assert told["power_drawn_kw"] == pytest.approx(expected_kw)
    assert told["power_drawn_kw"] < told["power_kw"]


def test_a_chip_of_unknown_idle_power_counts_with_its_limit_all_the_time() -> None:
    chips = {name: catalog.chip(name) for name in ("h200", "mi355x", "sn40l")}
    assert chips["sn40l"].idle_w is None
    plan = DeploymentPlan(
        model="deepseek-v3",
        topology="aggregated",
        pools=(Pool(role="aggregated", chip="sn40l", tp=16),),
    )
    for busy in (0.0, 1.0):
        drawn = power_drawn_kw(plan, chips, {}, {"aggregated": busy})
        assert drawn == power_kw(plan, chips, {}) == pytest.approx(16 * watts("sn40l") / 1e3)


def test_replicas_that_serve_nobody_are_paid_for_and_powered_too() -> None:
    """One user fills one replica: the others are idle, draw that power and change the bill."""
    lone, spare = served().metrics, served(prefills=2, attention=2).metrics
    assert spare["output_tokens_per_s"] == pytest.approx(lone["output_tokens_per_s"])
    for name in (
        "chips",
        "usd_per_hour",
        "power_kw",
        "usd_per_m_output_tokens",
    ):
        assert spare[name] == pytest.approx(2 * lone[name]), name
    idle_kw = {}
    for name in ("h200", "mi355x"):
        idle = catalog.chip(name).idle_power_w
        assert idle is not None
        idle_kw[name] = idle / 1e3
    more_kw = 10 * idle_kw["h200"] + 8 * idle_kw["mi355x"]
    assert spare["power_drawn_kw"] == pytest.approx(lone["power_drawn_kw"] + more_kw)
    assert spare["decode_experts_utilization"] == pytest.approx(
        lone["decode_experts_utilization"] / 2
    )


def test_measured_chips_draw_less_than_their_limit_and_more_than_idle(data_dir: Path) -> None:
    """The average draw of published runs, which are never without work, lies between the two."""
    with (data_dir / "measured" / "serving_points.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["avg_power_w_per_chip"]]
    assert len(rows) > 30
    for row in rows:
        chip = catalog.chip(row["hardware"].lower())
        assert chip.idle_w is not None and chip.tdp_w is not None
        # The chip's own power; one run, with 25 tokens/s a chip for 512 users, was mostly idle.
        assert 0.9 * chip.idle_w.value < float(row["avg_power_w_per_chip"]) < chip.tdp_w.value
