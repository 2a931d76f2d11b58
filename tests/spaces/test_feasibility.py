"""Each rule refuses what it should, with numbers in its reason and a positive shortfall."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from spaces.feasibility import (
    figures_are_known,
    host_memory_suffices,
    infeasible,
    layout_conflict,
    retention_has_a_tier,
)
from spaces.plan import DeploymentPlan, KvTiers, Pool, Precision
from spaces.site import ChipBudget, Site
from tests.spaces.worlds import plan_of, site_of

DEEPSEEK = site_of("deepseek-v3", {"h200": 32})
LLAMA = site_of("llama-3.3-70b", {"h100": 8, "mi355x": 8})


def test_a_sensible_plan_is_feasible() -> None:
    assert infeasible(plan_of("deepseek-v3", "h200", tp=8, ep=8), DEEPSEEK) is None
    assert infeasible(plan_of("deepseek-v3", "h200", dp=8, ep=8), DEEPSEEK) is None
    assert infeasible(plan_of("llama-3.3-70b", "h100", tp=4), LLAMA) is None


REFUSED: list[tuple[str, DeploymentPlan, Site, list[str]]] = [
    ("budget", plan_of("deepseek-v3", "h200", tp=8, ep=8, replicas=5), DEEPSEEK, ["40", "32"]),
    ("budget", plan_of("deepseek-v3", "b200", tp=8, ep=8), DEEPSEEK, ["b200"]),
    ("layout", plan_of("deepseek-v3", "h200", tp=6, ep=6), DEEPSEEK, ["128 attention heads"]),
    ("layout", plan_of("deepseek-v3", "h200", tp=16, ep=16), DEEPSEEK, ["8 chips of a domain"]),
    ("layout", plan_of("deepseek-v3", "h200", tp=8, ep=3), DEEPSEEK, ["ep must divide"]),
    ("layout", plan_of("llama-3.3-70b", "h100", tp=4, dp=2), LLAMA, ["dense", "replicas"]),
    ("layout", plan_of("deepseek-v3", "h200", tp=8, dp=4, ep=1), DEEPSEEK, ["blocks of 128"]),
    ("engine", plan_of("deepseek-v3", "h200", tp=8, ep=2), DEEPSEEK, ["vLLM", "[1, 8]"]),
    (
        "batch",
        plan_of("deepseek-v3", "h200", tp=8, ep=8, max_num_seqs=512, max_num_batched_tokens=256),
        DEEPSEEK,
        ["256", "512"],
    ),
    ("memory", plan_of("llama-3.3-70b", "h100", tp=1), LLAMA, ["GB a chip needed", "usable"]),
    ("memory", plan_of("deepseek-v3", "h200", tp=4, ep=4), DEEPSEEK, ["experts 163"]),
]


@pytest.mark.parametrize(("rule", "plan", "site", "words"), REFUSED)
def test_a_wrong_plan_is_refused_by_its_rule_with_numbers(
    rule: str, plan: DeploymentPlan, site: Site, words: list[str]
) -> None:
    refusal = infeasible(plan, site)
    assert refusal is not None
    assert refusal.rule == rule
    assert refusal.shortfall > 0
    for word in words:
        assert word in refusal.reason


def test_the_least_chips_of_a_budget_must_be_used() -> None:
    site = replace(DEEPSEEK, budget={"h200": ChipBudget(16, 32)})
    refusal = infeasible(plan_of("deepseek-v3", "h200", tp=8, ep=8), site)
    assert refusal is not None
    assert "at least 16" in refusal.reason


def test_a_request_longer_than_the_context_is_refused() -> None:
    site = site_of("qwen3-235b-a22b", {"h200": 8}, request=50_000)
    refusal = infeasible(plan_of("qwen3-235b-a22b", "h200", tp=8, ep=8), site)
    assert refusal is not None
    assert refusal.rule == "context"
    assert "50000" in refusal.reason


def test_a_host_tier_larger_than_the_host_is_refused() -> None:
    plan = plan_of("deepseek-v3", "h200", tp=8, ep=8)
    refusal = infeasible(plan.model_copy(update={"kv": KvTiers(host_gb_per_chip=999)}), DEEPSEEK)
    assert refusal is not None
    assert refusal.rule == "host memory"


def _tiered(chip: str, gb: float) -> DeploymentPlan:
    plan = plan_of("llama-3.1-8b", chip)
    return plan.model_copy(update={"kv": KvTiers(host_gb_per_chip=gb)})


def test_offloaded_kv_goes_to_a_chips_own_dram() -> None:
    site = site_of("llama-3.1-8b", {"sn40l": 1})
    assert host_memory_suffices(_tiered("sn40l", 1536), site) is None
    refusal = host_memory_suffices(_tiered("sn40l", 2000), site)
    assert refusal is not None
    assert "a sn40l has 1536 GB of its own DRAM" in refusal.reason


@pytest.mark.parametrize(
    ("plan", "figure"),
    [
        (_tiered("sn50", 100), "memory_levels.ddr.gb_per_s of sn50"),
        (_tiered("mi455x", 100), "host_dram_gb of mi455x"),
        (plan_of("llama-3.1-8b", "sn40l", tp=2), "scaleup_gb_per_s of sn40l"),
        (plan_of("llama-3.1-8b", "groq-lp30"), "bf16_tflops of groq-lp30"),
    ],
)
def test_a_plan_that_needs_an_unknown_figure_is_refused(plan: DeploymentPlan, figure: str) -> None:
    site = site_of("llama-3.1-8b", {plan.pools[0].chip: 8})
    refusal = figures_are_known(plan, site)
    assert refusal is not None
    assert refusal.reason == f"{figure} is not known"


def test_pools_in_one_rack_need_no_network() -> None:
    prefill = Pool(role="prefill", chip="mi455x", tp=4)
    decode = prefill.model_copy(update={"role": "decode"})
    plan = plan_of("llama-3.1-8b", "mi455x").model_copy(
        update={"topology": "prefill-decode", "pools": (prefill, decode)}
    )
    site = site_of("llama-3.1-8b", {"mi455x": 144})
    assert figures_are_known(plan, site) is None
    many = decode.model_copy(update={"replicas": 18})
    refusal = figures_are_known(plan.model_copy(update={"pools": (prefill, many)}), site)
    assert refusal is not None
    assert refusal.reason == "scaleout_gb_per_s of mi455x is not known"


def test_output_groups_are_not_cut() -> None:
    pool = Pool(role="aggregated", chip="gb200", tp=16)
    site = site_of("deepseek-v4-flash", {"gb200": 64})
    assert layout_conflict(pool, site) == "tp must divide the 8 output groups"


@pytest.mark.parametrize(("change", "word"), [({"pp": 2}, "pp 2"), ({"tp": 2, "dp": 4}, "")])
def test_vllm_moves_kv_only_between_layouts_its_connector_knows(
    change: dict[str, int], word: str
) -> None:
    prefill = Pool(role="prefill", chip="h200", tp=8, ep=8).model_copy(update=change)
    pools = (prefill, Pool(role="decode", chip="h200", tp=8, ep=8))
    plan = DeploymentPlan(model="deepseek-v3", topology="prefill-decode", pools=pools)
    refusal = infeasible(plan, DEEPSEEK)
    assert (refusal is None) == (word == "")
    if refusal is not None:
        assert refusal.rule == "engine"
        assert word in refusal.reason


def test_a_midfill_pool_needs_a_store_that_is_written_to() -> None:
    pools = tuple(
        Pool(role=role, chip="h200", tp=8, ep=8) for role in ("prefill", "midfill", "decode")
    )
    plan = DeploymentPlan(model="deepseek-v3", topology="prefill-midfill-decode", pools=pools)
    told = [infeasible(plan, DEEPSEEK)]
    for retention in ("lru", "write-through"):
        kv = KvTiers(shared_gb=500, retention=retention)
        told.append(infeasible(plan.model_copy(update={"kv": kv}), DEEPSEEK))
    assert [refusal and refusal.rule for refusal in told] == ["midfill", "midfill", None]


def test_kv_is_moved_down_only_where_there_is_a_tier() -> None:
    plan = plan_of("deepseek-v3", "h200", tp=8, ep=8)
    kv = KvTiers(retention="offload-at-turn-end")
    refusal = infeasible(plan.model_copy(update={"kv": kv}), DEEPSEEK)
    assert refusal is not None
    assert refusal.rule == "retention"


def test_weights_are_never_widened() -> None:
    plan = plan_of("deepseek-v3", "h200", tp=8, ep=8)
    wide = plan.model_copy(update={"precision": Precision(weights="bf16")})
    refusal = infeasible(wide, DEEPSEEK)
    assert refusal is not None
    assert refusal.rule == "precision"


def test_a_prefill_pool_needs_room_for_the_input_only() -> None:
    pools = tuple(Pool(role=role, chip="h200", tp=8, ep=8) for role in ("prefill", "decode"))
    plan = DeploymentPlan(model="deepseek-v3", topology="prefill-decode", pools=pools)
    assert infeasible(plan, DEEPSEEK) is None


def test_disks_without_a_known_rate_are_refused() -> None:
    for chip, known in (("h200", True), ("sn40l", False)):
        plan = plan_of("llama-3.1-8b", chip).model_copy(
            update={"kv": KvTiers(ssd_gb_per_chip=1000)}
        )
        refusal = figures_are_known(plan, site_of("llama-3.1-8b", {chip: 1}))
        assert (refusal is None) == known
        assert known or "nvme_gb_per_s" in str(refusal)


@pytest.mark.parametrize(
    "idle", [{"fetch": "when-faster"}, {"layerwise": True}, {"prefetch": True}], ids=str
)
def test_a_way_of_fetching_needs_something_to_fetch_from(idle: dict[str, Any]) -> None:
    site = site_of("llama-3.1-8b", {"h200": 1})
    plan = plan_of("llama-3.1-8b", "h200")
    without, behind = (
        retention_has_a_tier(plan.model_copy(update={"kv": kv}), site)
        for kv in (KvTiers(**idle), KvTiers(ssd_gb_per_chip=500, **idle))
    )
    assert without is not None
    assert behind is None
