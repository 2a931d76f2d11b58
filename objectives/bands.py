"""80 % intervals of the metrics of a run, derived from the residuals of points like it.

Three quantities were measured: TPOT, median TTFT and throughput. `SOURCES` says of every metric
how its interval follows from theirs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from objectives.interval_sources import SOURCES, Source
from objectives.measures import Good, Latencies, e2e_metrics
from objectives.metrics import POOL_METRICS
from objectives.simulator import RequestRecords
from objectives.slo import ClassReport, Slo, class_reports, good_requests, worst_attainment
from objectives.uncertainty import Band, ratios_of
from objectives.workload import Workload
from spaces.calibration import Quantity
from spaces.plan import DeploymentPlan
from spaces.site import Site

Ratios = Mapping[Quantity, Band]

# Shares of something that there is no more of.
_AT_MOST_ONE = ("utilization", "peak_kv_fraction")


def ratios_at(
    metrics: Mapping[str, float], plan: DeploymentPlan, site: Site
) -> dict[Quantity, Band]:
    """The quantiles of measured / predicted of each quantity for a plan with such metrics."""
    quantities: tuple[Quantity, ...] = ("tpot", "ttft", "throughput")
    return {quantity: ratios_of(quantity, metrics, plan, site) for quantity in quantities}


def bands_by_ratio(
    metrics: Mapping[str, float], plan: DeploymentPlan, ratios: Ratios
) -> dict[str, Band]:
    """The interval (low, high) of each metric that moves with a measured quantity.

    A metric of zero has none: no factor says how far from nothing it may be.
    """
    bands = {}
    for name, value in metrics.items():
        factors = _factors(SOURCES.get(name), ratios)
        if factors is not None and value != 0.0:
            most = max(value, _ceiling(name, metrics, plan))
            bands[name] = (value * factors[0], min(value * factors[1], most))
    return bands


def _factors(source: Source | None, ratios: Ratios) -> Band | None:
    if source == "crowding":
        low, high = ratios["tpot"]
        return min(low, 1.0), max(high, 1.0)
    if source == "energy":
        (low, high), (least, most) = ratios["tpot"], ratios["throughput"]
        return min(low, 1.0 / most), max(high, 1.0 / least)
    if source == "ttft" or source == "tpot" or source == "throughput":
        return ratios[source]
    if source == "1/tpot" or source == "1/throughput":
        low, high = ratios["tpot" if source == "1/tpot" else "throughput"]
        return 1.0 / high, 1.0 / low
    return None


def _ceiling(name: str, metrics: Mapping[str, float], plan: DeploymentPlan) -> float:
    """What a metric cannot exceed: the whole, a loop's users and the seats, all chips' power."""
    if name == "power_drawn_kw":
        return metrics["power_kw"]
    if name.endswith(_AT_MOST_ONE):
        return 1.0
    if name not in POOL_METRICS or not POOL_METRICS[name][1].startswith("batch_"):
        return float("inf")
    pool = plan.pool(POOL_METRICS[name][0])
    seats = float(pool.max_num_seqs * pool.dp)
    users = plan.load.concurrency if plan.load is not None else None
    return seats if users is None else min(seats, users)


def bands_of_requests(
    metrics: Mapping[str, float],
    records: RequestRecords,
    sent: Workload,
    slo: Slo | None,
    ratios: Ratios,
    chips: int,
) -> dict[str, Band]:
    """The interval of each metric that hangs on single requests: end-to-end latencies, SLOs met.

    TTFT and the rest of a request are taken at the ends of their own intervals together; goodput
    is at an end of throughput's as well.
    """
    rows = records.finished & records.measured
    if not rows.any():
        return {}
    ends = []
    for latencies, rate in _latency_ends(records, ratios):
        told = e2e_metrics(latencies.e2e_s[rows], records.output_tokens[rows])
        if slo is not None:
            good = good_requests(slo, records, sent, latencies)
            told |= _attainment(good, records, sent)
            told |= _goodput(metrics, records, told["slo_attainment"] * rate, chips)
        ends.append(told)
    return _hull([metrics, *ends], ends[0])  # a deviation may be least in the middle


def class_bands(
    classes: Iterable[ClassReport],
    records: RequestRecords,
    sent: Workload,
    slo: Slo | None,
    requests_per_s: float | None,
    ratios: Ratios,
) -> tuple[ClassReport, ...]:
    """The reports of the classes with intervals that come about as those of all requests."""
    ends = [
        class_reports(
            records,
            sent,
            slo,
            None if requests_per_s is None else requests_per_s * rate,
            latencies,
        )
        for latencies, rate in _latency_ends(records, ratios)
    ]
    return tuple(
        replace(told, bands=_hull([one.metrics for one in both], told.metrics))
        for told, *both in zip(classes, *ends, strict=True)
    )


def _latency_ends(records: RequestRecords, ratios: Ratios) -> Iterator[tuple[Latencies, float]]:
    """Latencies at the fast ends of their intervals and at the slow ones, and throughput's end."""
    latencies = Latencies.of(records)
    for slow in (False, True):
        scaled = latencies.scaled(ratios["ttft"][slow], ratios["tpot"][slow])
        yield scaled, ratios["throughput"][not slow]


def _attainment(good: Good, records: RequestRecords, sent: Workload) -> dict[str, float]:
    share = {"slo_attainment": float(good[records.measured].mean())}
    return share | worst_attainment(good, records, sent)


def _goodput(
    metrics: Mapping[str, float], records: RequestRecords, factor: float, chips: int
) -> dict[str, float]:
    """Goodput where `factor` is the attainment times a factor on throughput."""
    if "requests_per_s" not in metrics:
        return {}
    finished = float(records.finished[records.measured].mean())
    rate = metrics["requests_per_s"] * factor / finished
    return {"goodput_requests_per_s": rate, "goodput_requests_per_s_per_chip": rate / chips}


def bands_by_runs(
    metrics: Mapping[str, float],
    known: Mapping[str, Band],
    ends: Sequence[Mapping[str, float]],
) -> dict[str, Band]:
    """The intervals that are not known yet, from a run's metrics and those of runs at the `ends`.

    Those of zero, which no factor tells, are among them.
    """
    wanted = [name for name in metrics if name not in known and SOURCES[name] != "stated"]
    return _hull([metrics, *ends], wanted)


def _hull(ends: Sequence[Mapping[str, float]], names: Iterable[str]) -> dict[str, Band]:
    """The least and the greatest value of each of some names that all the ends have."""
    return {
        name: (min(one[name] for one in ends), max(one[name] for one in ends))
        for name in names
        if all(name in one for one in ends)
    }
