"""Each resource is told as the one that binds where it plainly does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from objectives.assess import Assessment, assess
from objectives.binding import Binding, _device_s, _host_s, _mean_steps
from objectives.deployment import pool_costs, scenario_of
from objectives.simulator import simulate
from objectives.workload import SyntheticSpec, generate, offers, presets
from objectives.workload.offering import NO_RULES
from spaces import catalog
from spaces.chip import ChipSpec
from spaces.documents import validated
from spaces.plan import DeploymentPlan, KvTiers, Load, Pool
from spaces.site import Site
from tests.spaces.worlds import plan_of, site_of


def assessed(
    plan: DeploymentPlan,
    clients: int,
    input_tokens: int,
    output_tokens: int,
    site: Site | None = None,
    **spec: Any,
) -> Assessment:
    data = {"requests": 80, "input_tokens": input_tokens, "output_tokens": output_tokens} | spec
    workload = generate(validated(SyntheticSpec, data, "test"), seed=1)
    chips = {pool.chip: 64 for pool in plan.pools}
    where = site or site_of(plan.model, chips)
    return assess(plan.at(Load(concurrency=clients)), where, workload, explain=True)


def bound(*arguments: Any, **keys: Any) -> Binding:
    found = assessed(*arguments, **keys).binding
    assert found is not None
    assert sum(found.shares.values()) == pytest.approx(1.0)
    assert all(share >= -0.01 for share in found.shares.values()), found.shares
    return found


def slower(name: str, **factors: float) -> ChipSpec:
    """A chip of the catalogue with some figures multiplied."""
    chip = catalog.chip(name)
    facts = {
        key: getattr(chip, key).model_copy(update={"value": getattr(chip, key).value * factor})
        for key, factor in factors.items()
    }
    return chip.model_copy(update=facts)


def test_long_prompts_with_short_answers_are_bound_by_compute() -> None:
    found = bound(plan_of("llama-3.1-8b", "h100"), 8, 6000, 4)
    assert found.resource == "compute"
    assert found.part == "dense layers"
    assert str(found) == "aggregated pool: compute (dense layers)"


def test_long_answers_on_short_prompts_are_bound_by_hbm_bandwidth_for_weights() -> None:
    found = bound(plan_of("llama-3.1-8b", "h100"), 8, 64, 400)
    assert (found.resource, found.part) == ("HBM bandwidth", "dense layers")


def test_many_long_contexts_are_bound_by_hbm_bandwidth_for_attention() -> None:
    pools = (
        Pool(role="prefill", chip="h100", replicas=8),
        Pool(role="decode", chip="h100", max_num_seqs=64),
    )
    plan = DeploymentPlan(model="llama-3.1-8b", topology="prefill-decode", pools=pools)
    found = bound(plan, 32, 7000, 800)
    assert (found.pool, found.resource) == ("decode", "HBM bandwidth")
    assert found.part == "attention over the context"


def test_requests_with_seats_but_no_kv_are_bound_by_kv_capacity() -> None:
    roomy = plan_of("llama-3.1-8b", "h100", max_num_seqs=64)
    tight = roomy.model_copy(update={"hbm_fraction": 0.3})
    told = [assessed(plan, 32, 3000, 300) for plan in (roomy, tight)]
    resources = [found.binding.resource for found in told if found.binding]
    assert resources[0] != "KV capacity" and resources[1] == "KV capacity"
    assert (
        told[1].metrics["aggregated_queue_mean_ms"] > told[0].metrics["aggregated_queue_mean_ms"]
    )


def test_a_full_prefix_cache_is_no_want_of_kv() -> None:
    """Cached blocks fill the memory, but give way to any request."""
    tight = plan_of("llama-3.1-8b", "h100").model_copy(update={"hbm_fraction": 0.4})
    found = assessed(tight, 4, 6000, 50, shared_prefix_tokens=1024)
    assert found.metrics["peak_kv_fraction"] > 0.97
    assert found.binding is not None and found.binding.resource != "KV capacity"


def test_a_thin_network_between_pools_is_the_link_that_binds() -> None:
    pools = (Pool(role="prefill", chip="h100"), Pool(role="decode", chip="h100"))
    plan = DeploymentPlan(model="llama-3.1-8b", topology="prefill-decode", pools=pools)
    site = site_of("llama-3.1-8b", {"h100": 2})
    thin = replace(site, chips={"h100": slower("h100", scaleout_gb_per_s=0.01)})
    assert bound(plan, 8, 4000, 50, site=site).resource != "link"
    found = bound(plan, 8, 4000, 50, site=thin)
    assert (found.resource, found.part) == ("link", "KV over the network")


def test_tensor_parallelism_over_a_slow_fabric_is_bound_by_the_link() -> None:
    site = site_of("llama-3.1-8b", {"h100": 8})
    thin = replace(site, chips={"h100": slower("h100", scaleup_gb_per_s=0.02)})
    found = bound(plan_of("llama-3.1-8b", "h100", tp=8), 16, 4000, 20, site=thin)
    assert (found.resource, found.part) == ("link", "between the chips of a replica")


def test_host_memory_behind_a_thin_link_binds() -> None:
    """Sessions whose KV does not stay in HBM fetch it at every turn."""
    tiers = KvTiers(host_gb_per_chip=100, retention="offload-at-turn-end")
    plan = plan_of("llama-3.1-8b", "h100").model_copy(update={"kv": tiers, "hbm_fraction": 0.3})
    site = site_of("llama-3.1-8b", {"h100": 1})
    thin = replace(site, chips={"h100": slower("h100", host_link_gb_per_s=0.001)})
    chat = presets.workload_of("chat", 300, seed=1)
    found = [
        assess(plan.at(Load(concurrency=24)), one, chat, explain=True).binding
        for one in (site, thin)
    ]
    assert found[0] is not None and found[0].resource != "link"
    assert str(found[1]) == "aggregated pool: link (KV from and to host memory)"


def test_one_request_in_four_stages_is_bound_by_their_imbalance() -> None:
    plan = plan_of("qwen3-32b", "h200", pp=4)
    alone, many = bound(plan, 1, 500, 200), bound(plan, 64, 500, 200)
    assert alone.resource == "stage imbalance"
    assert alone.shares["stage imbalance"] == pytest.approx(0.75, abs=0.05)
    assert many.resource != "stage imbalance"


def test_a_small_model_with_many_requests_is_bound_by_the_host() -> None:
    plan = plan_of("gpt-oss-20b", "b200", tp=4, max_num_seqs=512)
    found = bound(plan, 512, 32, 64, requests=2000)
    assert found.resource == "host", found.shares


def test_short_prompts_launched_one_by_one_are_bound_by_the_host() -> None:
    plan = plan_of("llama-3.1-8b", "h100", "sglang")
    old = plan.model_copy(update={"engine_version": "0.5.9"})
    site = site_of("llama-3.1-8b", {"h100": 8}, engine="sglang")
    assert bound(old, 8, 64, 2, site=site).resource == "host"
    assert bound(plan, 8, 64, 2, site=site).resource != "host"


def test_attention_and_experts_on_a_slow_network_are_bound_by_the_way_between_them() -> None:
    pools = (
        Pool(role="prefill", chip="h200", tp=8, replicas=4),
        Pool(role="decode-attention", chip="h200", dp=8, max_num_seqs=64),
        Pool(role="decode-experts", chip="h200", tp=16, ep=16),
    )
    plan = DeploymentPlan(model="deepseek-v3", topology="prefill-decode+afd", pools=pools)
    site = site_of("deepseek-v3", {"h200": 64})
    thin = replace(site, chips={"h200": slower("h200", scaleout_gb_per_s=0.002)})
    found = bound(plan, 64, 100, 200, site=thin)
    assert (found.pool, found.resource) == ("decode-attention", "link")
    assert found.part == "between attention and experts"
    fast = replace(site, chips={"h200": slower("h200", scaleout_gb_per_s=100.0)})
    assert bound(plan, 64, 100, 200, site=fast).resource == "HBM bandwidth"


def test_experts_that_read_more_slowly_than_attention_bind_in_their_own_pool() -> None:
    pools = (
        Pool(role="prefill", chip="h200", tp=8, replicas=4),
        Pool(role="decode-attention", chip="h200", dp=8, max_num_seqs=64),
        Pool(role="decode-experts", chip="h100", tp=16, ep=16),
    )
    plan = DeploymentPlan(model="deepseek-v3", topology="prefill-decode+afd", pools=pools)
    site = site_of("deepseek-v3", {"h200": 64, "h100": 16})
    slow = replace(site, chips={**site.chips, "h100": slower("h100", hbm_gb_per_s=0.2)})
    found = bound(plan, 64, 100, 200, site=slow)
    assert str(found) == "decode-experts pool: HBM bandwidth (routed experts)"


@pytest.mark.parametrize("pool", [{"tp": 1}, {"tp": 2, "pp": 2}], ids=str)
def test_the_steps_that_are_priced_take_what_steps_took(pool: dict[str, int]) -> None:
    """Mean seconds of a step, or of its stages, are within a twentieth of the run's."""
    plan = plan_of("llama-3.1-8b", "h100", "vllm", **pool).at(Load(concurrency=16))
    site = site_of("llama-3.1-8b", {"h100": 4})
    data = {"requests": 200, "input_tokens": 1000, "output_tokens": 200}
    workload = generate(validated(SyntheticSpec, data, "test"), seed=1)
    sent, load = next(iter(offers(workload, plan.load, NO_RULES, 1)))
    result = simulate(scenario_of(plan, site, 1), sent, load)
    (record,) = result.pools
    costs, steps = (
        pool_costs(plan, plan.pools[0], site),
        _mean_steps(plan.pools[0], record, result, 0),
    )
    priced_s = sum(step.weight * _host_s(costs, step) for step in steps)
    priced_s += _device_s(costs, steps, costs)
    stages = plan.pools[0].pp
    work_s = record.utilization * result.makespan_s * stages * (1 - record.bubble_fraction)
    assert priced_s == pytest.approx(work_s / record.steps, rel=0.05)
