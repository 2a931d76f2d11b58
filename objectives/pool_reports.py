"""How each pool of a plan fared in a simulation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from objectives.cost import expert_imbalance
from objectives.simulator import PoolRecord, SimulationResult
from spaces.memory import hbm_ledger
from spaces.plan import DeploymentPlan, Pool
from spaces.site import Site


@dataclass(frozen=True, slots=True)
class PoolReport:
    """How a pool fared: what it did, what it waited for, and how full its memory got.

    `bubble_fraction` is the share of busy time that pipeline stages, or attention for experts,
    waited. `queue_ms` is the mean wait for a seat and KV. Batches are requests of a replica's
    step, percentiles over steps. KV moved is over the network, host and disk links of its ranks.
    `expert_imbalance` is the rows of the busiest expert rank over the mean, in an average step.
    """

    role: str
    chip: str
    engine: str
    layout: str
    replicas: int
    utilization: float
    bubble_fraction: float
    queue_ms: float
    mean_batch: float
    batch_p50: float
    batch_p95: float
    batch_max: float
    prefill_tokens: int
    decode_tokens: int
    expert_imbalance: float
    kv_capacity_tokens: int
    peak_kv_fraction: float
    peak_hbm_gb: float
    kv_network_gb: float
    kv_host_gb: float
    kv_ssd_gb: float


def pool_reports(
    plan: DeploymentPlan, result: SimulationResult, site: Site
) -> Iterator[PoolReport]:
    """A report of every pool; that of experts alone shares the record of attention."""
    for pool, record in zip(plan.serving_pools, result.pools, strict=True):
        yield _pool_report(plan, pool, record, site)
    if plan.splits_decode:
        yield _experts_report(plan, result.pools[-1], site)


def _pool_report(plan: DeploymentPlan, pool: Pool, record: PoolRecord, site: Site) -> PoolReport:
    ledger = hbm_ledger(site.model, site.chips[pool.chip], pool, plan, site.longest_request_tokens)
    kv_bytes = record.peak_kv_fraction * record.kv_capacity_tokens * ledger.kv_bytes_per_token
    taken = ledger.usable_bytes - ledger.kv_budget_bytes
    median, high = batch_percentiles(record.batch_steps, (50.0, 95.0))
    return PoolReport(
        role=pool.role,
        chip=pool.chip,
        engine=plan.settings(pool).engine,
        layout=pool.layout,
        replicas=pool.replicas,
        utilization=record.utilization,
        bubble_fraction=record.bubble_fraction,
        queue_ms=record.queue_s * 1e3,
        mean_batch=record.mean_batch,
        batch_p50=median,
        batch_p95=high,
        batch_max=float(max(0, len(record.batch_steps) - 1)),
        prefill_tokens=record.prefill_tokens,
        decode_tokens=record.decode_tokens,
        expert_imbalance=_expert_imbalance(plan, pool, record, site),
        kv_capacity_tokens=record.kv_capacity_tokens,
        peak_kv_fraction=record.peak_kv_fraction,
        peak_hbm_gb=(taken + kv_bytes) / 1e9,
        kv_network_gb=record.network_bytes / 1e9,
        kv_host_gb=record.host_bytes / 1e9,
        kv_ssd_gb=record.ssd_bytes / 1e9,
    )


def _experts_report(plan: DeploymentPlan, attention: PoolRecord, site: Site) -> PoolReport:
    """The experts' pool has no requests and no KV: what it worked, and its weights."""
    pool = plan.pool("decode-experts")
    ledger = hbm_ledger(site.model, site.chips[pool.chip], pool, plan, site.longest_request_tokens)
    asked = replace(attention, batch_steps=(), peak_kv_fraction=0.0)
    waited = 1.0 - attention.experts_utilization / max(attention.utilization, 1e-12)
    return replace(
        _pool_report(plan, plan.pool("decode-attention"), asked, site),
        role=pool.role,
        chip=pool.chip,
        layout=pool.layout,
        utilization=attention.experts_utilization,
        bubble_fraction=waited if attention.utilization else 0.0,
        queue_ms=0.0,
        mean_batch=attention.mean_batch,
        prefill_tokens=0,
        decode_tokens=0,
        kv_capacity_tokens=0,
        peak_hbm_gb=(ledger.usable_bytes - ledger.kv_budget_bytes) / 1e9,
        kv_network_gb=0.0,
        kv_host_gb=0.0,
        kv_ssd_gb=0.0,
    )


def batch_percentiles(steps: Sequence[int], percentiles: Sequence[float]) -> list[float]:
    """Requests of a step at percentiles over steps, from how many steps had `n` requests.

    >>> batch_percentiles([0, 6, 0, 4], (50.0, 95.0))
    [1.0, 3.0]
    """
    reached = np.cumsum(steps)
    if not len(reached):
        return [0.0] * len(percentiles)
    return [float(np.searchsorted(reached, p / 100 * reached[-1])) for p in percentiles]


def _expert_imbalance(plan: DeploymentPlan, pool: Pool, record: PoolRecord, site: Site) -> float:
    """Rows of the busiest expert rank over the mean in an average step; 1 without experts."""
    moe = site.model.moe
    experts = plan.pool("decode-experts") if pool.role == "decode-attention" else pool
    if moe is None or not record.steps:
        return 1.0
    verified = record.decode_request_steps * plan.verified_tokens(pool)
    tokens = (record.prefill_tokens + verified) / record.steps
    return float(expert_imbalance(moe, np.array([max(1.0, tokens)]), experts.ep)[0])
