"""How the pools of the points of a front fared, as rows of a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from objectives.metrics import MEAN, METRICS, pool_metric, split_name
from results.trials import TrialRecord
from results.words import describe_layout, format_value
from spaces.plan import Pool

# Heading of each column, and the metric of a pool that stands there.
_COLUMNS = {
    "utilization": "utilization",
    "bubbles": "bubble_fraction",
    "wait mean ms": "queue_mean_ms",
    "wait p95 ms": "queue_p95_ms",
    "batch p5": "batch_p5",
    "p50": "batch_p50",
    "p95": "batch_p95",
    "max": "batch_max",
    "mean": "batch_mean",
    "expert imbalance": "expert_imbalance",
    "peak KV": "peak_kv_fraction",
    "HBM GB/chip": "hbm_gb_per_chip",
    "network KV GB": "kv_network_gb",
    "host KV GB": "kv_host_gb",
    "disk KV GB": "kv_ssd_gb",
    "copied KV GB": "kv_copied_gb",
}


def pool_columns() -> list[dict[str, object]]:
    """Heading and meaning of the columns of `pool_rows`."""
    words = {
        "point": "names the plan at its load",
        "pool": "role, replicas x [layout] chip, and the workload where there are several",
    }
    fixed = [{"heading": h, "meaning": m, "number": False} for h, m in words.items()]
    meanings = {stem: METRICS[pool_metric("prefill", stem)].meaning for stem in _COLUMNS.values()}
    return [
        *fixed,
        *(
            {"heading": heading, "meaning": meanings[stem].split(": ", 1)[1], "number": True}
            for heading, stem in _COLUMNS.items()
        ),
    ]


def pool_rows(points: Sequence[TrialRecord]) -> list[dict[str, object]]:
    """One row for each pool of each point, and for each workload where there are several."""
    return [
        {
            "point_id": point.plan.point_id,
            "pool": _words(pool, of),
            "cells": _cells(point, pool, of),
        }
        for point in points
        for pool in point.plan.pools
        for of in _workloads(point, pool)
    ]


def _workloads(point: TrialRecord, pool: Pool) -> Iterator[str]:
    """The workloads that the pool's metrics are of, one without a name where there is one."""
    told = pool_metric(pool.role, "utilization")
    for name in point.metrics:
        metric, workload = split_name(name)
        if metric == told and workload != MEAN:
            yield workload


def _words(pool: Pool, workload: str) -> str:
    told = f"{pool.role}: {pool.replicas}x[{describe_layout(pool)}] {pool.chip}"
    return f"{told} @{workload}" if workload else told


def _cells(point: TrialRecord, pool: Pool, workload: str) -> list[dict[str, object]]:
    end = f"@{workload}" if workload else ""
    values = [point.metrics.get(pool_metric(pool.role, s) + end) for s in _COLUMNS.values()]
    return [
        {
            "value": "" if value is None else value,
            "text": "-" if value is None else format_value(value),
        }
        for value in values
    ]
