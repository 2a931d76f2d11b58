"""What a plan is worth where it must serve several workloads: the worst case, and means over time.

A metric of several workloads has up to three kinds of value, told apart by its name:

- `ttft_p95_ms`, the worst over the workloads in the direction of the metric; a metric that has
  none has no worst;
- `ttft_p95_ms@chat`, that of one workload;
- `output_tokens_per_s@mean`, the mean over time where each workload is served for the share of
  time that its weight says; only of metrics that have such a mean (`mean_over`). Percentiles,
  deviations and peaks have none: what a percentile of all requests would be does not follow from
  those of the parts.

A single workload has plain names only.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from objectives.assess import Assessment
from objectives.metrics import MEAN, METRICS, POOL_METRICS, split_name
from objectives.workload import Workload

# Rates and what is there all the time: their mean weighs time alone.
_OVER_TIME = frozenset(
    {
        *("requests_per_s", "goodput_requests_per_s", "goodput_requests_per_s_per_chip"),
        *(f"{kind}_tokens_per_s" for kind in ("input", "output", "total")),
        *(f"{kind}_tokens_per_s_per_chip" for kind in ("input", "output", "total")),
        *(f"phase_{kind}_tokens_per_s" for kind in ("input", "output", "total")),
        *(f"phase_{kind}_tokens_per_s_per_chip" for kind in ("input", "output", "total")),
        *("output_tokens_per_s_per_budget_chip", "qps_mean"),
        *(name for name, (_, stem) in POOL_METRICS.items() if stem == "utilization"),
        *("usd_per_hour", "power_kw", "power_drawn_kw", "chips"),
        *("sessions_per_chip", "sessions_per_kw"),
    }
)
# Means over requests or tokens: a workload weighs as many as pass in its share of time.
_OVER_A_RATE = {
    **dict.fromkeys(("ttft_mean_ms", "tpot_mean_ms", "e2e_mean_ms"), "requests_per_s"),
    **dict.fromkeys(
        ("slo_attainment", "input_tokens_mean", "output_tokens_mean"), "requests_per_s"
    ),
    **dict.fromkeys(("usd_per_m_output_tokens", "joules_per_output_token"), "output_tokens_per_s"),
    **{
        f"{tier}_hit_fraction": "input_tokens_per_s"
        for tier in ("prefix", "hbm", "host", "ssd", "store")
    },
}

Values = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class WeightedWorkload:
    """A workload, what it is called in names of metrics, and its weight: a share of time."""

    name: str
    weight: float
    workload: Workload


@dataclass(frozen=True, slots=True)
class Worth:
    """The metrics of a plan over all its workloads, named as this module says, and what they took.

    `bands` hold an interval for each that comes from the cost model; the ends of that of a worst
    case or a mean are the worst or the mean of the workloads' ends, as if the cost model erred
    alike in all of them.
    """

    metrics: Mapping[str, float]
    bands: Mapping[str, tuple[float, float]]
    simulated_requests: int
    simulation_cpu_s: float


def worth(parts: Sequence[WeightedWorkload], found: Sequence[Assessment]) -> Worth:
    """The assessments of one plan on each of `parts`, taken together."""
    if len(parts) == 1:
        alone = found[0]
        return Worth(alone.metrics, alone.bands, alone.simulated_requests, alone.simulation_cpu_s)
    each = [one.metrics for one in found]
    metrics = {
        name: float(value)
        for name in _names(parts, METRICS)
        if (value := combined(name, parts, each)) is not None and not math.isnan(value)
    }
    return Worth(
        metrics,
        {name: band for name in metrics if (band := _band(name, parts, found)) is not None},
        simulated_requests=sum(one.simulated_requests for one in found),
        simulation_cpu_s=sum(one.simulation_cpu_s for one in found),
    )


def _band(
    name: str, parts: Sequence[WeightedWorkload], found: Sequence[Assessment]
) -> tuple[float, float] | None:
    """The interval of a combined metric; a part without one counts with its value.

    A mean weighs the ends by the rates of the parts as they are.
    """
    metric, of = split_name(name)
    mine = [one for part, one in zip(parts, found, strict=True) if of in ("", MEAN, part.name)]
    if not any(metric in one.bands for one in mine):
        return None
    low, high = (
        combined(name, parts, [_at_end(name, one, end) for one in found]) for end in (0, 1)
    )
    return None if low is None or high is None else (float(low), float(high))


def _at_end(name: str, found: Assessment, end: int) -> dict[str, float]:
    """What `combined` needs of one workload, the metric itself at an end of its interval."""
    known = {one: found.metrics[one] for one in ingredients(name) if one in found.metrics}
    metric, _ = split_name(name)
    return known | ({metric: found.bands[metric][end]} if metric in found.bands else {})


def combined(
    name: str, parts: Sequence[WeightedWorkload], each: Sequence[Mapping[str, Any]]
) -> Any | None:
    """The value of `name` from the metrics of each workload, numbers or arrays of one shape.

    None where a metric it needs is absent or has no such value; nan where a mean weighs nothing.
    """
    metric, of = split_name(name)
    if len(parts) == 1:
        return each[0].get(metric) if not of else None
    if of and of != MEAN:
        return each[[part.name for part in parts].index(of)].get(metric)
    if any(needed not in one for needed in ingredients(name) for one in each):
        return None
    values = np.array([one[metric] for one in each], dtype=np.float64)
    if of == MEAN:
        return _mean(metric, values, parts, each)
    if METRICS[metric].better == "neither":
        return None
    return values.max(axis=0) if METRICS[metric].better == "lower" else values.min(axis=0)


def ingredients(name: str) -> tuple[str, ...]:
    """The metrics of each workload that `combined` needs for a name."""
    metric, of = split_name(name)
    rate = mean_over(metric) if of == MEAN else ""
    return (metric, rate) if rate else (metric,)


def mean_over(metric: str) -> str | None:
    """The rate whose counts a metric is a mean over, empty for a mean over time, else None."""
    return "" if metric in _OVER_TIME else _OVER_A_RATE.get(metric)


def _mean(
    metric: str,
    values: Values,
    parts: Sequence[WeightedWorkload],
    each: Sequence[Mapping[str, Any]],
) -> Values | None:
    rate = mean_over(metric)
    if rate is None:
        return None
    weights = np.array([part.weight for part in parts])
    weights = weights.reshape(-1, *[1] * (values.ndim - 1)) * np.ones_like(values)
    if rate:
        weights = weights * np.array([one[rate] for one in each], dtype=np.float64)
    # From the first value on, so that the mean of equal values is that value to the last bit.
    with np.errstate(invalid="ignore", divide="ignore"):
        above = ((values - values[0]) * weights).sum(axis=0) / weights.sum(axis=0)
    mean: Values = values[0] + above
    return mean


def _names(parts: Sequence[WeightedWorkload], metrics: Iterable[str]) -> list[str]:
    """All names under which metrics of several workloads may have values."""
    ends = ["", f"@{MEAN}", *(f"@{part.name}" for part in parts)]
    return [metric + end for metric in metrics for end in ends]
