"""The HBM ledger against sums done by hand."""

from __future__ import annotations

import pytest

from spaces.memory import RUNTIME_BYTES, hbm_ledger, tier_kv_tokens
from spaces.plan import KvTiers, Pool
from tests.spaces.worlds import plan_of, site_of


def test_deepseek_on_eight_h200_leaves_what_the_sum_by_hand_leaves() -> None:
    plan = plan_of("deepseek-v3", "h200", tp=8, ep=8)
    site = site_of("deepseek-v3", {"h200": 8})
    ledger = hbm_ledger(site.model, site.chips["h200"], plan.pools[0], plan)
    fp8 = 1 + 4 / 128**2
    assert ledger.expert_bytes == pytest.approx(58 * 256 * 3 * 7168 * 2048 * fp8 / 8)
    assert ledger.embedding_bytes == pytest.approx(2 * 129280 * 7168 * 2 / 8)
    assert ledger.usable_bytes == pytest.approx(0.9 * 151.397597184e9)
    taken = ledger.weight_bytes + ledger.activation_bytes + RUNTIME_BYTES
    assert ledger.kv_budget_bytes == pytest.approx(ledger.usable_bytes - taken)
    assert ledger.kv_bytes_per_token == 70_272  # latents are not split
    tokens = 16 * ledger.kv_blocks(16)
    assert tokens * 70_272 <= ledger.kv_budget_bytes < (tokens + 16) * 70_272


def test_recurrent_state_is_counted_once_for_each_request() -> None:
    plan = plan_of("kimi-k3", "gb300", tp=8, dp=2, ep=16)
    site = site_of("kimi-k3", {"gb300": 16})
    ledger = hbm_ledger(site.model, site.chips["gb300"], plan.pools[0], plan)
    assert ledger.request_bytes == pytest.approx(449_372_160 / 8)
    assert ledger.kv_bytes_per_token == 27_648


def test_windows_count_as_full_unless_no_request_fills_them() -> None:
    plan = plan_of("llama-4-scout", "h200", tp=8)
    site = site_of("llama-4-scout", {"h200": 8})
    token = 2 * 128 * 2  # one of 8 KV heads on each chip
    chip, pool = site.chips["h200"], plan.pools[0]
    long, short = (hbm_ledger(site.model, chip, pool, plan, n) for n in (8193, 8192))
    assert (long.kv_bytes_per_token, long.request_bytes) == (12 * token, 36 * token * 8192)
    assert (short.kv_bytes_per_token, short.request_bytes) == (48 * token, 0)
    assert hbm_ledger(site.model, chip, pool, plan) == long
    limited = plan.model_copy(update={"max_model_len": 4096})
    assert hbm_ledger(site.model, chip, pool, limited) == short


def test_sparse_attention_keeps_all_it_may_select_from() -> None:
    plan = plan_of("deepseek-v3.2", "h200", tp=8, ep=8)
    site = site_of("deepseek-v3.2", {"h200": 8})
    ledger = hbm_ledger(site.model, site.chips["h200"], plan.pools[0], plan)
    assert ledger.kv_bytes_per_token == 61 * (576 * 2 + 132)  # neither is split
    assert ledger.request_bytes == 0


def test_the_window_of_compressed_attention_is_whole_on_each_rank() -> None:
    plan = plan_of("deepseek-v4-pro", "gb300", tp=8, ep=8)
    site = site_of("deepseek-v4-pro", {"gb300": 8})
    ledger = hbm_ledger(site.model, site.chips["gb300"], plan.pools[0], plan)
    assert ledger.request_bytes == 61 * 128 * 1024
    assert ledger.kv_bytes_per_token == 8918


def test_pipeline_stages_share_weights_and_kv() -> None:
    site = site_of("llama-3.3-70b", {"h100": 8})
    whole, halved = (
        hbm_ledger(site.model, site.chips["h100"], plan.pools[0], plan)
        for plan in (plan_of("llama-3.3-70b", "h100", tp=4, pp=pp) for pp in (1, 2))
    )
    assert halved.linear_bytes == pytest.approx(whole.linear_bytes / 2)
    assert halved.kv_bytes_per_token == whole.kv_bytes_per_token / 2


def test_host_memory_keeps_a_latent_once_for_all_tensor_ranks() -> None:
    pool = Pool(role="aggregated", chip="h200", tp=8, ep=8)
    plan = plan_of("deepseek-v3", "h200").model_copy(update={"kv": KvTiers(host_gb_per_chip=100)})
    model = site_of("deepseek-v3", {"h200": 8}).model
    assert tier_kv_tokens(model, pool, plan, 100) == int(8 * 100e9 / 70_272)
