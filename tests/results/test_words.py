"""Plans, loads and figures in words."""

from __future__ import annotations

import math

import pytest

from objectives.metrics import METRICS
from results.trials import TrialRecord
from results.words import (
    band_text,
    describe_layout,
    describe_load,
    describe_plan,
    describe_settings,
    format_value,
    metric_axis,
    metric_heading,
    metric_title,
    value_text,
)
from spaces.plan import DeploymentPlan, KvTiers, Load, Pool, Precision


@pytest.mark.parametrize(
    ("degrees", "label"),
    [
        ({}, "TP1"),
        ({"tp": 4}, "TP4"),
        ({"tp": 8, "ep": 8}, "TEP8"),
        ({"dp": 32, "ep": 32}, "DPAEP32"),
        ({"dp": 8}, "DP8"),
        ({"tp": 2, "dp": 4, "ep": 8}, "TP2 DP4 EP8"),
        ({"tp": 8, "ep": 4}, "TP8 EP4"),
        ({"tp": 8, "ep": 8, "dp": 2}, "TP8 DP2 EP8"),
        ({"tp": 2, "ep": 8, "dp": 8}, "TP2 DP8 EP8"),
        ({"pp": 4}, "PP4"),
        ({"tp": 8, "ep": 8, "pp": 2}, "TEP8 PP2"),
    ],
)
def test_a_layout_is_labelled_as_in_published_charts(degrees: dict[str, int], label: str) -> None:
    pool = Pool.model_validate({"role": "decode", "chip": "h200", **degrees})
    assert describe_layout(pool) == label


def test_pools_are_named_in_the_order_of_the_plan() -> None:
    plan = DeploymentPlan(
        model="m",
        topology="prefill-decode",
        pools=(
            Pool(role="prefill", chip="h100", replicas=2, tp=4, ep=4),
            Pool(role="decode", chip="h200", dp=32, ep=32),
        ),
        load=Load(request_rate=2.5),
        precision=Precision(weights="fp8", kv="fp8"),
        kv=KvTiers(host_gb_per_chip=200),
    )
    assert describe_plan(plan) == "2x[TEP4] h100 -> 1x[DPAEP32] h200"
    assert describe_load(plan) == "2.5 requests/s"
    assert describe_settings(plan) == "vllm, fp8 weights, fp8 KV, 200 GB host KV per chip"
    assert describe_load(plan.model_copy(update={"load": None})) == "no load"


def test_every_metric_has_names_of_its_own() -> None:
    for name_of in (metric_title, metric_heading, metric_axis):
        names = [name_of(metric) for metric in METRICS]
        assert all(names)
        assert len(set(names)) == len(names)
        assert not any("{" in name or "_" in name for name in names)


def test_figures_that_are_missing_or_endless_are_told_as_such() -> None:
    plan = DeploymentPlan(
        model="m", topology="aggregated", pools=(Pool(role="aggregated", chip="h200"),)
    )
    metrics = {"power_kw": math.nan, "ttft_p50_ms": math.inf, "tpot_p50_ms": 12.34}
    trial = TrialRecord(0, plan, "complete", metrics, bands={"tpot_p50_ms": (11.0, 14.5)})
    texts = [value_text(trial, name) for name in ("chips", *metrics)]
    assert texts == ["-", "-", "inf", "12.3"]
    assert band_text(trial, "tpot_p50_ms") == "11 to 14.5"
    assert band_text(trial, "power_kw") == ""


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (0.62, "0.620"), (1.005, "1.00"), (99.96, "100.0"), (-250.4, "-250")],
)
def test_figures_keep_three_significant_digits(value: float, text: str) -> None:
    assert format_value(value) == text
