"""What a study is told to rest on: the calibration that holds, and what of the costs is known."""

from __future__ import annotations

from dataclasses import replace

from objectives.calibrated import shipped_calibration
from objectives.provenance import Provenance, provenance
from objectives.uncertainty import ratios_of
from spaces.calibration import Calibration
from spaces.plan import DeploymentPlan, Pool
from tests.spaces.worlds import plan_of, site_of

QUICK = {"ttft_p50_ms": 50.0, "e2e_p50_ms": 1000.0}
QUEUED = {"ttft_p50_ms": 900.0, "e2e_p50_ms": 1000.0}


def test_the_shipped_calibration_is_named_with_its_corrections_of_the_site() -> None:
    told = provenance(site_of("llama-3.3-70b", {"h100": 8, "mi300x": 8}))
    shipped = shipped_calibration()
    assert shipped.data is not None
    assert "shipped" in told.calibration
    assert f"{shipped.data.points:,} points of {shipped.data.file}" in told.calibration
    mine = [
        one
        for one in shipped.offsets
        if "llama-3.3-70b" in one.models
        and one.chip in ("h100", "mi300x")
        and one.engine == "vllm"
    ]
    assert mine
    assert len(told.corrections) == len(mine)
    for one in mine:
        assert any(f"x {one.factor:.3f}" in text for text in told.corrections)
    assert not provenance(site_of("llama-3.3-70b", {"gaudi3": 8})).corrections


def test_an_own_calibration_is_told_with_what_it_changes_on_these_chips() -> None:
    constants = {
        "operators.h100.product.bf16.any.move": 1.25,
        "operators.a100.product.bf16.any.move": 0.5,
        "frontend.by_engine_ms.vllm": 9.0,
    }
    own = Calibration(fitted="2026-11-11", constants=constants)
    told = provenance(replace(site_of("llama-3.3-70b", {"h100": 8}), calibration=own))
    assert "own calibration, fitted 2026-11-11" in told.calibration
    assert "no intervals" in told.calibration
    assert told.residuals == shipped_calibration().residuals
    assert told.corrections == (
        "operators.h100.product.bf16.any.move: 1.25",
        "frontend.by_engine_ms.vllm: 9",
    )


def test_each_cost_says_whether_it_was_measured() -> None:
    told = provenance(site_of("deepseek-v3", {"h200": 8, "mi300x": 8}))
    status = {ground.what: ground.status for ground in told.grounds}
    assert status["h200: matrix products of 32 rows and more"] == "fitted"
    assert status["h200: gemm"] == "measured"
    assert status["mi300x: experts"] == "estimate"
    assert "mi300x: matrix products of 32 rows and more" not in status
    assert "h200: linear attention" not in status  # which the model has none of
    assert status["all chips: host work"] == "estimate"
    assert all(ground.source for ground in told.grounds)


def test_operators_read_from_tables_are_told_first() -> None:
    site = replace(site_of("deepseek-v3", {"h200": 8}), operator_costs="measured")
    first = provenance(site).grounds[0]
    assert (first.what, first.status) == ("operators of all chips", "measured")


def test_the_group_that_is_told_is_the_one_the_intervals_come_from() -> None:
    site = site_of("deepseek-v3", {"h200": 8, "gaudi3": 8})
    told = Provenance.model_validate(provenance(site).model_dump(mode="json"))
    assert told.knowledge == {"h200": "pair", "gaudi3": "none"}
    pools = tuple(Pool(role=r, chip=c) for r, c in (("prefill", "gaudi3"), ("decode", "h200")))
    apart = DeploymentPlan(model="deepseek-v3", topology="prefill-decode", pools=pools)
    for plan in (plan_of("deepseek-v3", "h200"), apart):
        for metrics in (QUICK, QUEUED):
            for quantity in ("tpot", "ttft", "throughput"):
                row = told.residuals_of(quantity, plan, metrics)
                assert row is not None
                assert (row.low, row.high) == ratios_of(quantity, metrics, plan, site)
                assert row.knowledge == ("pair" if plan is not apart else "none")
