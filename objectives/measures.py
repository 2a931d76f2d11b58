"""From request records to metrics: percentiles over requests, rates over the steady window."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from objectives.metrics import STATISTICS
from objectives.simulator import RequestRecords, SimulationResult
from spaces.documents import Document

Values = npt.NDArray[np.float64]
_PERCENTILES = {"p50": 50.0, "p90": 90.0, "p95": 95.0, "p99": 99.0}


class Slo(Document):
    """What one request must meet to count as good; limits left out are not looked at."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2e_ms: float | None = None

    def met(self, records: RequestRecords) -> npt.NDArray[np.bool_]:
        """Whether each request [n] finished within every limit; one token has no TPOT."""
        good = records.finished.copy()
        for limit_ms, seconds in (
            (self.ttft_ms, records.ttft_s),
            (self.tpot_ms, np.nan_to_num(records.tpot_s, nan=0.0)),
            (self.e2e_ms, records.e2e_s),
        ):
            if limit_ms is not None:
                good &= seconds * 1e3 <= limit_ms
        return good


@dataclass(frozen=True, slots=True)
class Window:
    """The span of a run in which rates are taken, in seconds of its clock."""

    start_s: float
    end_s: float

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.end_s - self.start_s


def steady_window(result: SimulationResult) -> Window:
    """The run without filling up and running dry, where enough of it is left.

    A closed loop is full from the moment a tenth of the requests has finished until the last one
    is sent; an open loop is offered its rate until the last arrival. A window shorter than half
    the run would rest on too few requests, and the whole run is taken instead.
    """
    records = result.requests
    finish_s = np.sort(records.finish_s[records.finished])
    whole = Window(0.0, result.makespan_s)
    if len(finish_s) == 0:
        return whole
    start_s = float(finish_s[len(finish_s) // 10]) if result.closed_loop else 0.0
    window = Window(start_s, float(records.arrival_s[records.sent].max()))
    return window if window.seconds >= 0.5 * whole.seconds else whole


def tokens_within(records: RequestRecords, window: Window) -> float:
    """Output tokens given out in the window, each request's spread evenly from first to last."""
    first, last = records.first_token_s, records.finish_s
    span = np.maximum(last - first, 1e-12)
    share = (np.minimum(last, window.end_s) - np.maximum(first, window.start_s)) / span
    inside = np.clip(share, 0.0, 1.0) * (records.output_tokens - 1)
    inside += (first >= window.start_s) & (first <= window.end_s)
    return float(inside[records.finished].sum())


def request_metrics(result: SimulationResult, slo: Slo | None) -> dict[str, float]:
    """Latency, rate and cache metrics of a run, chips apart; what has no sample is absent.

    Percentiles are over all measured requests that finished, interpolated linearly. Rates are
    over `steady_window`.
    """
    records = result.requests
    if not records.measured.any():
        return {}
    finished = records.finished & records.measured
    metrics: dict[str, float] = {
        "rejected_fraction": float(1.0 - finished.sum() / records.measured.sum()),
        "preemptions_per_request": float(records.preemptions[finished].mean())
        if finished.any()
        else 0.0,
    }
    if not finished.any():
        return metrics
    hits = records.hit_tokens
    metrics["prefix_hit_fraction"] = float(
        hits[finished].sum() / records.input_tokens[finished].sum()
    )
    metrics |= _latencies(result)
    return metrics | _rates(result, slo)


def _latencies(result: SimulationResult) -> dict[str, float]:
    records = result.requests
    finished = records.finished & records.measured
    tpot_s = records.tpot_s[finished]
    tpot_s = tpot_s[~np.isnan(tpot_s)]
    e2e_s = records.e2e_s[finished]
    metrics = _summary("ttft", records.ttft_s[finished])
    metrics |= _summary("e2e", e2e_s)
    metrics |= _speeds("e2e_tokens_per_s_per_user", e2e_s / records.output_tokens[finished])
    if len(tpot_s):
        metrics |= _summary("tpot", tpot_s)
        metrics |= _speeds("tokens_per_s_per_user", tpot_s)
    return metrics | _gaps(result)


def _summary(stem: str, seconds: Values) -> dict[str, float]:
    percentiles = np.percentile(seconds, list(_PERCENTILES.values()))
    values = {"mean": seconds.mean(), **dict(zip(_PERCENTILES, percentiles, strict=True))}
    return {f"{stem}_{name}_ms": float(values[name]) * 1e3 for name in STATISTICS}


def _speeds(stem: str, seconds_per_token: Values) -> dict[str, float]:
    """1 / the same statistic of the seconds per token, so that p95 is the slow tail."""
    in_ms = _summary("x", seconds_per_token)
    return {
        f"{stem}_{name}": 1e3 / in_ms[f"x_{name}_ms"]
        for name in STATISTICS
        if in_ms[f"x_{name}_ms"] > 0
    }


def _gaps(result: SimulationResult) -> dict[str, float]:
    """Inter-token latency from the histogram: the middle of the bin in which the rank falls."""
    total = int(result.gap_counts.sum())
    if total == 0:
        return {}
    reached = np.cumsum(result.gap_counts)
    metrics = {"itl_mean_ms": result.gap_mean_s * 1e3}
    for name, percentile in _PERCENTILES.items():
        place = int(np.searchsorted(reached, math.ceil(percentile / 100.0 * total)))
        metrics[f"itl_{name}_ms"] = float(result.gap_middle_s[place]) * 1e3
    return metrics


def _rates(result: SimulationResult, slo: Slo | None) -> dict[str, float]:
    records = result.requests
    window = steady_window(result)
    if window.seconds <= 0:
        return {}
    output = tokens_within(records, window) / window.seconds
    outputs = float(records.output_tokens[records.finished].mean())
    inputs = float(records.input_tokens[records.finished].mean())
    requests = output / outputs
    metrics = {
        "requests_per_s": requests,
        "output_tokens_per_s": output,
        "total_tokens_per_s": requests * (inputs + outputs),
    }
    if slo is not None:
        good = float(slo.met(records)[records.measured].mean())
        metrics["slo_attainment"] = good
        finished = float(records.finished[records.measured].mean())
        metrics["goodput_requests_per_s"] = requests * good / finished
    return metrics


def per_chip(metrics: Mapping[str, float], chips: int, budget_chips: int) -> dict[str, float]:
    """The rates divided by the chips a deployment occupies, and by those of the whole budget."""
    divided = {
        f"{name}_per_chip": metrics[name] / chips
        for name in ("output_tokens_per_s", "total_tokens_per_s", "goodput_requests_per_s")
        if name in metrics
    }
    if "output_tokens_per_s" in metrics:
        divided["output_tokens_per_s_per_budget_chip"] = (
            metrics["output_tokens_per_s"] / budget_chips
        )
    return divided
