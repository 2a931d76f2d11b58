"""A plan in the simulator's numbers, on chips of which little is known."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from objectives.deployment import scenario_of
from spaces import catalog
from spaces.feasibility import figures_are_known
from spaces.plan import KvTiers
from tests.spaces.worlds import plan_of, site_of

KNOWN = [name for name in catalog.chip_names() if name != "groq-lp30"]  # its bf16 rate is unknown


@pytest.mark.parametrize("chip", KNOWN)
def test_one_chip_alone_needs_no_figure_of_a_link(chip: str) -> None:
    plan, site = plan_of("llama-3.1-8b", chip), site_of("llama-3.1-8b", {chip: 1})
    assert figures_are_known(plan, site) is None
    (pool,) = scenario_of(plan, site).pools
    assert pool.link_bytes_per_s > 0
    assert pool.host_s_per_token == 0.0
    facts = catalog.chip(chip).facts()
    unknown = not {"scaleup_gb_per_s", "scaleout_gb_per_s"} <= facts.keys()
    assert math.isinf(pool.link_bytes_per_s) == unknown


def test_blocks_of_short_requests_hold_their_windows() -> None:
    plan = plan_of("llama-4-scout", "h200", tp=8)
    short, long = (
        scenario_of(plan, site_of("llama-4-scout", {"h200": 8}, request=tokens)).pools[0]
        for tokens in (8192, 8193)
    )
    assert (short.request_blocks, long.request_blocks) == (0, 36 * 8192 // (12 * 16))
    assert 3.9 < long.kv_blocks / short.kv_blocks < 4.1


def test_tokens_handed_out_together_cost_the_host_once() -> None:
    plan, site = plan_of("llama-3.1-8b", "h100"), site_of("llama-3.1-8b", {"h100": 1})
    slower = site.engines["vllm"].model_copy(update={"stream_interval": 10})
    together = replace(site, engines={"vllm": slower})
    (each,), (tenth,) = (scenario_of(plan, place).pools for place in (site, together))
    assert tenth.costs.request_s == pytest.approx(each.costs.request_s / 10)
    assert tenth.costs.host_s == each.costs.host_s


def test_tiers_reach_the_simulator() -> None:
    kv = KvTiers(ssd_gb_per_chip=1000, fetch="when-faster", layerwise=True, prefetch=True)
    plain = plan_of("llama-3.3-70b", "h200", tp=4)
    site = site_of("llama-3.3-70b", {"h200": 4})
    scenario = scenario_of(plain.model_copy(update={"kv": kv}), site)
    (pool,) = scenario.pools
    token_bytes = 80 * 2 * 8 * 128 * 2  # layers, keys and values, KV heads, head size, bf16
    assert pool.ssd_tokens == int(4 * 1000e9 / token_bytes)
    drive = catalog.chip("h200").known("nvme_gb_per_s") * 1e9
    assert pool.ssd_s_per_token == pytest.approx(token_bytes / (4 * drive))
    assert scenario.fetch_when_faster and scenario.prefetch
    assert scenario.layers == 80
    without = scenario_of(plain, site)
    assert (without.fetch_when_faster, without.layers, without.prefetch) == (False, 1, False)
    assert without.pools[0].ssd_tokens == 0
