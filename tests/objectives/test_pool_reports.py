"""What is told of each pool after a simulation."""

from __future__ import annotations

import pytest

from objectives.assess import Assessment, assess
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
    assert pool.mean_batch <= 8
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
    assert decode.queue_ms > 10 * prefill.queue_ms  # two seats for sixteen clients


def test_experts_apart_are_a_pool_of_their_own() -> None:
    pools = (
        Pool(role="prefill", chip="h200", tp=8),
        Pool(role="decode-attention", chip="h200", dp=8, max_num_seqs=64),
        Pool(role="decode-experts", chip="h200", tp=16, ep=16),
    )
    plan = DeploymentPlan(model="deepseek-r1", topology="prefill-decode+afd", pools=pools)
    found = assessed(at(plan, 32))
    _, attention, experts = found.pools
    assert (experts.role, experts.chip, experts.layout) == (
        "decode-experts",
        "h200",
        "tp16-pp1-dp1-ep16",
    )
    assert 0 < experts.utilization < attention.utilization
    assert experts.decode_tokens == experts.kv_capacity_tokens == 0
    assert experts.expert_imbalance > 1.0
    assert found.metrics["chips"] == 32
