"""How each pool of a plan fared in a simulation."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from objectives.cost import expert_imbalance
from objectives.simulator import PoolRecord, SimulationResult
from objectives.simulator.records import Seconds
from spaces.memory import hbm_ledger
from spaces.plan import DeploymentPlan, Pool
from spaces.site import Site


@dataclass(frozen=True, slots=True)
class PoolReport:
    """How a pool fared: what it did, what it waited for, and how full its memory got.

    What is also a metric is named as there (`objectives.metrics`), with the role before it.
    `bubble_fraction` is the share of busy time that pipeline stages, or attention and experts,
    waited for one another. Waits are those of requests for a seat and KV, nan where none waited
    here. `batch_steps[n]` are the steps with `n` requests of a replica, of which the others of
    `batch` are statistics. KV moved is over the network, host and disk links of its ranks.
    `expert_imbalance` is the rows of the busiest expert rank over the mean, in an average step; 1
    without experts. The pool of experts alone works on the batches of attention.
    """

    role: str
    chip: str
    engine: str
    layout: str
    replicas: int
    utilization: float
    bubble_fraction: float
    queue_mean_ms: float
    queue_p95_ms: float
    batch_mean: float
    batch_p5: float
    batch_p50: float
    batch_p95: float
    batch_max: float
    prefill_tokens: int
    decode_tokens: int
    expert_imbalance: float
    kv_capacity_tokens: int
    peak_kv_fraction: float
    hbm_gb_per_chip: float
    kv_network_gb: float
    kv_host_gb: float
    kv_ssd_gb: float
    kv_copied_gb: float
    batch_steps: tuple[int, ...]


def pool_reports(
    plan: DeploymentPlan, result: SimulationResult, site: Site
) -> Iterator[PoolReport]:
    """A report of every pool; that of experts alone shares the record of attention."""
    for place, (pool, record) in enumerate(zip(plan.serving_pools, result.pools, strict=True)):
        yield _pool_report(plan, pool, record, result.requests.waits_s(place), site)
    if plan.splits_decode:
        yield _experts_report(plan, result.pools[-1], site)


def _pool_report(
    plan: DeploymentPlan, pool: Pool, record: PoolRecord, waits_s: Seconds, site: Site
) -> PoolReport:
    ledger = hbm_ledger(site.model, site.chips[pool.chip], pool, plan, site.longest_request_tokens)
    kv_bytes = record.peak_kv_fraction * record.kv_capacity_tokens * ledger.kv_bytes_per_token
    taken = ledger.usable_bytes - ledger.kv_budget_bytes
    low, median, high = batch_percentiles(record.batch_steps, (5.0, 50.0, 95.0))
    return PoolReport(
        role=pool.role,
        chip=pool.chip,
        engine=plan.settings(pool).engine,
        layout=pool.layout,
        replicas=pool.replicas,
        utilization=record.utilization,
        bubble_fraction=record.bubble_fraction,
        queue_mean_ms=float(waits_s.mean()) * 1e3 if len(waits_s) else math.nan,
        queue_p95_ms=float(np.percentile(waits_s, 95.0)) * 1e3 if len(waits_s) else math.nan,
        batch_mean=record.mean_batch,
        batch_p5=low,
        batch_p50=median,
        batch_p95=high,
        batch_max=float(max(0, len(record.batch_steps) - 1)),
        prefill_tokens=record.prefill_tokens,
        decode_tokens=record.decode_tokens,
        expert_imbalance=_expert_imbalance(plan, pool, record, site),
        kv_capacity_tokens=record.kv_capacity_tokens,
        peak_kv_fraction=record.peak_kv_fraction,
        hbm_gb_per_chip=(taken + kv_bytes) / 1e9,
        kv_network_gb=record.network_bytes / 1e9,
        kv_host_gb=record.host_bytes / 1e9,
        kv_ssd_gb=record.ssd_bytes / 1e9,
        kv_copied_gb=record.copied_bytes / 1e9,
        batch_steps=record.batch_steps,
    )


def _experts_report(plan: DeploymentPlan, attention: PoolRecord, site: Site) -> PoolReport:
    """The experts' pool has no requests and no KV: what it worked, and its weights."""
    pool = plan.pool("decode-experts")
    ledger = hbm_ledger(site.model, site.chips[pool.chip], pool, plan, site.longest_request_tokens)
    asked = replace(attention, peak_kv_fraction=0.0, prefill_tokens=0, decode_tokens=0)
    waited = 1.0 - attention.experts_utilization / max(attention.utilization, 1e-12)
    return replace(
        _pool_report(plan, plan.pool("decode-attention"), asked, np.array([]), site),
        role=pool.role,
        chip=pool.chip,
        layout=pool.layout,
        utilization=attention.experts_utilization,
        bubble_fraction=waited if attention.utilization else 0.0,
        expert_imbalance=_expert_imbalance(plan, pool, attention, site),
        kv_capacity_tokens=0,
        hbm_gb_per_chip=(ledger.usable_bytes - ledger.kv_budget_bytes) / 1e9,
        kv_network_gb=0.0,
        kv_host_gb=0.0,
        kv_ssd_gb=0.0,
        kv_copied_gb=0.0,
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
    if moe is None or not pool.holds_experts or not record.steps:
        return 1.0
    asking = plan.pool("decode-attention") if pool.role == "decode-experts" else pool
    verified = record.decode_request_steps * plan.verified_tokens(asking)
    tokens = (record.prefill_tokens + verified) / record.steps
    return float(expert_imbalance(moe, np.array([max(1.0, tokens)]), pool.ep)[0])
