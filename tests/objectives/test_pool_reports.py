"""What is told of each pool after a simulation."""

from __future__ import annotations

import numpy as np
import pytest

from objectives.assess import Assessment, assess
from objectives.metrics import POOL_METRICS
from objectives.pool_reports import batch_percentiles
from objectives.workload import SyntheticSpec, generate
from spaces.documents import validated
from spaces.plan import DeploymentPlan, Load, Pool
from tests.spaces.worlds import plan_of, site_of


def assessed(plan: DeploymentPlan, requests: int = 60) -> Assessment:
    spec = {"requests": requests, "input_tokens": 1000, "output_tokens": 40}
    workload = generate(validated(SyntheticSpec, spec, "test"), seed=1)
    return assess(plan, site_of(plan.model, {"h200": 64}), workload)


def at(plan: DeploymentPlan, clients: int) -> DeploymentPlan:
    return plan.at(Load(concurrency=clients))


def test_percentiles_of_batches_are_over_steps() -> None:
    assert batch_percentiles([0, 90, 0, 10], (50.0, 95.0)) == [1.0, 3.0]
    assert batch_percentiles([], (50.0,)) == [0.0]


def test_batches_reach_the_clients_and_no_further() -> None:
    (pool,) = assessed(at(plan_of("qwen3-32b", "h200", tp=4), 8)).pools
    assert pool.batch_p50 <= pool.batch_p95 <= pool.batch_max == 8
    assert pool.batch_mean <= 8
    assert (pool.bubble_fraction, pool.expert_imbalance) == (0.0, 1.0)


def test_fewer_requests_than_stages_leave_bubbles() -> None:
    plan = plan_of("qwen3-32b", "h200", tp=2, pp=2)
    alone, many = (assessed(at(plan, clients)).pools[0] for clients in (1, 16))
    assert alone.bubble_fraction == pytest.approx(0.5, abs=0.05)
    assert many.bubble_fraction < 0.3


def test_kv_moved_between_pools_is_told_at_both_ends() -> None:
    pools = (
        Pool(role="prefill", chip="h200", tp=4),
        Pool(role="decode", chip="h200", tp=4, max_num_seqs=2),
    )
    plan = DeploymentPlan(model="qwen3-32b", topology="prefill-decode", pools=pools)
    prefill, decode = assessed(at(plan, 16)).pools
    kv_gb = 60 * 1000 * 64 * 8 * 128 * 2 * 2 / 1e9  # 64 layers of 8 heads of 128, keys and values
    assert prefill.kv_network_gb == pytest.approx(kv_gb, rel=0.02)
    assert decode.kv_network_gb == pytest.approx(prefill.kv_network_gb)
    assert decode.queue_mean_ms > 10 * prefill.queue_mean_ms  # two seats for sixteen clients


def test_experts_apart_are_a_pool_of_their_own() -> None:
    pools = (
        Pool(role="prefill", chip="h200", tp=8),
        Pool(role="decode-attention", chip="h200", dp=8, max_num_seqs=64),
        Pool(role="decode-experts", chip="h200", tp=16, ep=16),
    )
    plan = DeploymentPlan(model="deepseek-r1", topology="prefill-decode+afd", pools=pools)
    found = assessed(at(plan, 32))
    prefill, attention, experts = found.pools
    assert (experts.role, experts.chip, experts.layout) == (
        "decode-experts",
        "h200",
        "tp16-pp1-dp1-ep16",
    )
    assert 0 < experts.utilization < attention.utilization
    assert experts.decode_tokens == experts.kv_capacity_tokens == 0
    assert attention.expert_imbalance == 1.0 < experts.expert_imbalance
    assert experts.batch_steps == attention.batch_steps
    assert found.metrics["chips"] == 32
    told = found.metrics
    assert told["decode_attention_utilization"] == attention.utilization
    assert told["decode_experts_utilization"] == experts.utilization
    assert told["prefill_queue_p95_ms"] == prefill.queue_p95_ms
    assert "decode_experts_queue_p95_ms" not in told  # it has no requests
    assert "decode_attention_expert_imbalance" not in told  # it has no experts
    assert not any(name.startswith(("aggregated_", "midfill_")) for name in told)


def test_every_pool_of_a_plan_has_its_metrics_and_no_other_pool() -> None:
    pools = (
        Pool(role="prefill", chip="h200", tp=4),
        Pool(role="decode", chip="h200", tp=4, max_num_seqs=2),
    )
    plan = DeploymentPlan(model="qwen3-32b", topology="prefill-decode", pools=pools)
    told = assessed(at(plan, 16))
    wanted = {name for name, (role, _) in POOL_METRICS.items() if role in ("prefill", "decode")}
    assert {name for name in told.metrics if name in POOL_METRICS} == wanted
    assert 0 < told.metrics["decode_utilization"] <= 1
    assert told.metrics["decode_batch_max"] == 2


def test_waits_are_those_of_the_requests_in_each_pool() -> None:
    """The first token waits for both pools, so their mean waits sum to those of the requests."""
    pools = (
        Pool(role="prefill", chip="h200", tp=4, max_num_seqs=1),
        Pool(role="decode", chip="h200", tp=4, max_num_seqs=2),
    )
    plan = DeploymentPlan(model="qwen3-32b", topology="prefill-decode", pools=pools)
    found = assessed(at(plan, 16))
    parts = found.ttft_parts_ms
    assert found.metrics["prefill_queue_mean_ms"] == pytest.approx(parts["queue"])
    assert found.metrics["decode_queue_mean_ms"] == pytest.approx(parts["decode_wait"])
    assert found.metrics["decode_queue_p95_ms"] >= found.metrics["decode_queue_mean_ms"]


def test_the_distribution_of_batches_has_the_mean_and_the_percentiles_that_are_told() -> None:
    (pool,) = assessed(at(plan_of("qwen3-32b", "h200", tp=4), 8)).pools
    steps = np.array(pool.batch_steps)
    each = np.repeat(np.arange(len(steps)), steps)
    assert pool.batch_mean == pytest.approx(each.mean())
    for name, percentile in (("batch_p5", 5), ("batch_p50", 50), ("batch_p95", 95)):
        told = np.percentile(each, percentile, method="inverted_cdf")
        assert getattr(pool, name) == told
    assert pool.batch_max == each.max()
