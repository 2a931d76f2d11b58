"""What a plan is worth on a workload: the objective function of the search."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from objectives.bands import (
    bands_by_ratio,
    bands_by_runs,
    bands_of_requests,
    class_bands,
    ratios_at,
)
from objectives.binding import Binding, binding
from objectives.cost import OperatorSource, power_drawn_kw, power_kw, usd_per_hour
from objectives.deployment import operator_sources, scenario_of, slowed
from objectives.measures import per_chip, request_metrics
from objectives.metrics import POOL_METRICS
from objectives.phase import phase_metrics
from objectives.pool_reports import PoolReport, pool_reports
from objectives.saturation import QueueGrowth, queue_growth
from objectives.simulator import HostRecord, Scenario, SimulationResult, simulate
from objectives.slo import ClassReport, Slo, class_reports, good_requests, worst_attainment
from objectives.workload import LoadRules, Workload, offers
from objectives.workload.offering import NO_RULES
from objectives.workload.workload import NO_PARENT
from spaces.plan import DeploymentPlan
from spaces.site import Site

__all__ = ["Assessment", "PoolReport", "assess"]


@dataclass(frozen=True, slots=True)
class Assessment:
    """The worth of a plan at its load.

    `metrics` are named as in `objectives.metrics`; a metric without a sample or without a known
    price is absent. `classes` hold those of each class of requests apart. `bands` hold the 80 %
    intervals of those that hang on predicted time (`objectives.bands`). Only where a plan is
    explained there are the intervals that take further runs, those of classes, and `binding`,
    which says what to have more of.
    `queue_growth` tells of an open loop how its queue grew: where it is `saturated`, latencies
    only say how long the run was. `run_output_tokens_per_s` counts all tokens over the
    whole run, as load generators do, with its filling up and running dry. `operator_sources` tell,
    by role of a pool, which operators were read from measured tables, where a job asks for that.
    """

    metrics: dict[str, float]
    bands: dict[str, tuple[float, float]]
    pools: tuple[PoolReport, ...]
    ttft_parts_ms: dict[str, float]
    queue_growth: QueueGrowth | None
    simulated_requests: int
    simulation_cpu_s: float
    binding: Binding | None = None
    classes: tuple[ClassReport, ...] = ()
    run_output_tokens_per_s: float = 0.0
    operator_sources: Mapping[str, tuple[OperatorSource, ...]] = field(default_factory=dict)
    hosts: HostRecord | None = None


def assess(
    plan: DeploymentPlan,
    site: Site,
    workload: Workload,
    *,
    slo: Slo | None = None,
    prices: Mapping[str, float] | None = None,
    rules: LoadRules = NO_RULES,
    seed: int = 1,
    explain: bool = False,
) -> Assessment:
    """Simulate `workload` on a feasible `plan` under `plan.load` (as recorded where it has none).

    `rules` say how the load is sent, `seed` what they draw. Deterministic: the arguments decide
    every byte of the metrics. With `explain` the binding resource is told, which prices the
    busiest pool's steps three more times, and the run is made twice more, with steps at the ends
    of their interval.
    """
    started_s = time.thread_time()
    scenario = scenario_of(plan, site, seed)
    worth_of = partial(_run, plan, site, workload, slo, prices, rules, seed)
    run = worth_of(scenario)
    result, metrics = run.result, run.metrics
    classes = class_reports(result.requests, run.sent, slo, metrics.get("requests_per_s"))
    ratios = ratios_at(metrics, plan, site)
    bands = bands_by_ratio(metrics, plan, ratios)
    bands |= bands_of_requests(metrics, result.requests, run.sent, slo, ratios, plan.chips)
    sources = operator_sources(plan, site)
    metrics |= _fitted_operators(sources)
    seconds = time.thread_time() - started_s
    if explain:
        ends = [worth_of(slowed(scenario, factor)).metrics for factor in ratios["tpot"]]
        bands |= bands_by_runs(metrics, bands, ends)
        rate = metrics.get("requests_per_s")
        classes = class_bands(classes, result.requests, run.sent, slo, rate, ratios)
    return Assessment(
        metrics=metrics,
        bands=bands,
        pools=run.pools,
        ttft_parts_ms=_ttft_parts_ms(result),
        binding=binding(plan, site, result) if explain else None,
        queue_growth=run.growth,
        hosts=result.hosts,
        simulated_requests=int(result.requests.sent.sum()),
        simulation_cpu_s=seconds,
        classes=classes,
        run_output_tokens_per_s=_run_rate(result),
        operator_sources=sources,
    )


@dataclass(frozen=True, slots=True)
class _Run:
    """One simulation of a plan: what was sent, what became of it, and what that is worth."""

    sent: Workload
    result: SimulationResult
    pools: tuple[PoolReport, ...]
    growth: QueueGrowth | None
    metrics: dict[str, float]


def _run(
    plan: DeploymentPlan,
    site: Site,
    workload: Workload,
    slo: Slo | None,
    prices: Mapping[str, float] | None,
    rules: LoadRules,
    seed: int,
    scenario: Scenario,
) -> _Run:
    sent, result = _served(plan, scenario, workload, rules, seed)
    growth = queue_growth(result)
    pools = tuple(pool_reports(plan, result, site))
    good = None if slo is None else good_requests(slo, result.requests, sent)
    metrics = request_metrics(result, good) | phase_metrics(result, sent)
    if good is not None:
        metrics |= worst_attainment(good, result.requests, sent)
    metrics |= _growth_metrics(growth)
    metrics |= per_chip(metrics, plan.chips, site.budget_chips)
    metrics |= _plan_metrics(plan, site, pools, prices) | _pool_metrics(pools)
    metrics |= _unit_costs(metrics)
    return _Run(sent, result, pools, growth, metrics)


def _run_rate(result: SimulationResult) -> float:
    tokens = int(result.requests.output_tokens[result.requests.finished].sum())
    return tokens / result.makespan_s if result.makespan_s > 0 else 0.0


def _served(
    plan: DeploymentPlan, scenario: Scenario, workload: Workload, rules: LoadRules, seed: int
) -> tuple[Workload, SimulationResult]:
    """What was sent and what became of it, with as many rounds of sessions as the time takes."""
    for sent, load in offers(workload, plan.load, rules, seed):
        result = simulate(scenario, sent, load)
        last_session = np.flatnonzero(sent.parent == NO_PARENT)[-1]
        if not result.requests.sent[last_session] or not result.requests.finished.any():
            break
    return sent, result


def _growth_metrics(growth: QueueGrowth | None) -> dict[str, float]:
    if growth is None:
        return {}
    longer_ms = (growth.late_s - growth.early_s) * 1e3
    return {"saturated": float(growth.saturated), "queue_growth_ms": longer_ms}


def _plan_metrics(
    plan: DeploymentPlan,
    site: Site,
    pools: tuple[PoolReport, ...],
    prices: Mapping[str, float] | None,
) -> dict[str, float]:
    metrics = {
        "chips": float(plan.chips),
        "hbm_gb_per_chip": max(pool.hbm_gb_per_chip for pool in pools),
        "peak_kv_fraction": max(pool.peak_kv_fraction for pool in pools),
    }
    utilization = {pool.role: pool.utilization for pool in pools}
    costs = {
        "power_kw": power_kw(plan, site.chips, site.hosts),
        "power_drawn_kw": power_drawn_kw(plan, site.chips, site.hosts, utilization),
        "usd_per_hour": usd_per_hour(plan, site.chips, prices),
    }
    metrics |= {name: cost for name, cost in costs.items() if cost is not None}
    sessions = plan.load.concurrency if plan.load is not None else None
    if sessions is not None:
        metrics["sessions_per_chip"] = sessions / plan.chips
        if "power_kw" in metrics:
            metrics["sessions_per_kw"] = sessions / metrics["power_kw"]
    return metrics


def _pool_metrics(pools: tuple[PoolReport, ...]) -> dict[str, float]:
    """The metrics of the pools there are; one without a sample is absent."""
    by_role = {pool.role: pool for pool in pools}
    values = {
        name: float(getattr(by_role[role], stem))
        for name, (role, stem) in POOL_METRICS.items()
        if role in by_role
    }
    return {name: value for name, value in values.items() if not math.isnan(value)}


def _fitted_operators(sources: Mapping[str, tuple[OperatorSource, ...]]) -> dict[str, float]:
    if not sources:
        return {}
    fitted = sum(not one.measured for told in sources.values() for one in told)
    return {"fitted_operators": float(fitted)}


def _unit_costs(metrics: Mapping[str, float]) -> dict[str, float]:
    rate = metrics.get("output_tokens_per_s", 0.0)
    if rate <= 0:
        return {}
    costs = {}
    if "power_drawn_kw" in metrics:
        costs["joules_per_output_token"] = metrics["power_drawn_kw"] * 1e3 / rate
    if "usd_per_hour" in metrics:
        costs["usd_per_m_output_tokens"] = metrics["usd_per_hour"] / (rate * 3600) * 1e6
    return costs


def _ttft_parts_ms(result: SimulationResult) -> dict[str, float]:
    """Means of the parts of TTFT over the finished requests; they sum to the mean TTFT."""
    records = result.requests
    if not records.finished.any():
        return {}
    parts = ("frontend", "queue", "fetch", "prefill", "decode_wait", "transfer")
    return {part: float(np.nanmean(getattr(records, f"{part}_s"))) * 1e3 for part in parts}
