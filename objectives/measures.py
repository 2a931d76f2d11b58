"""From request records to metrics: percentiles over requests, rates over the steady window."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from objectives.metrics import STANDARD_DEVIATION, STATISTICS
from objectives.simulator import RequestRecords, SimulationResult
from objectives.simulator.records import Tokens

Values = npt.NDArray[np.float64]
Good = npt.NDArray[np.bool_]
_PERCENTILES = {"p50": 50.0, "p75": 75.0, "p90": 90.0, "p95": 95.0, "p99": 99.0}


@dataclass(frozen=True, slots=True)
class Latencies:
    """What each request [n] waited, in seconds; NaN where it did not finish.

    TPOT is NaN for an answer of one token too.
    """

    ttft_s: Values
    tpot_s: Values
    e2e_s: Values

    @classmethod
    def of(cls, records: RequestRecords) -> Latencies:
        """Those of a run."""
        return cls(records.ttft_s, records.tpot_s, records.e2e_s)

    def scaled(self, ttft: float, tpot: float) -> Latencies:
        """The same with TTFT `ttft` times as long, and all after the first token `tpot` times."""
        after_s = self.e2e_s - self.ttft_s
        e2e_s = self.ttft_s * ttft + after_s * tpot
        return Latencies(self.ttft_s * ttft, self.tpot_s * tpot, e2e_s)


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


def request_metrics(result: SimulationResult, good: Good | None) -> dict[str, float]:
    """Latency, rate and cache metrics of a run, chips apart; what has no sample is absent.

    `good` [n] says which requests met their SLO, where there is one. Percentiles are over all
    measured requests that finished, interpolated linearly. Rates are over `steady_window`.
    """
    records = result.requests
    if not records.measured.any():
        return {}
    finished = records.finished & records.measured
    metrics: dict[str, float] = {
        "rejected_fraction": float(1.0 - finished.sum() / records.measured.sum()),
        "queue_full_fraction": float(records.turned_away[records.measured].mean()),
        "preemptions_per_request": float(records.preemptions[finished].mean())
        if finished.any()
        else 0.0,
    }
    if not finished.any():
        return metrics
    inputs = records.input_tokens[finished].sum()
    for name, hits in (
        ("prefix_hit_fraction", records.hit_tokens),
        ("hbm_hit_fraction", records.hbm_hit_tokens),
        ("host_hit_fraction", records.host_hit_tokens),
        ("ssd_hit_fraction", records.ssd_hit_tokens),
        ("store_hit_fraction", records.store_hit_tokens),
    ):
        metrics[name] = float(hits[finished].sum() / inputs)
    moved = result.tier_bytes
    for name, size in (
        ("host_fetched_gb", moved.host),
        ("ssd_fetched_gb", moved.ssd),
        ("store_fetched_gb", moved.store),
        ("host_written_gb", moved.written_to_host),
        ("ssd_written_gb", moved.written_to_ssd),
        ("store_written_gb", moved.written_to_store),
        ("handed_off_gb", result.handed_off_bytes),
    ):
        metrics[name] = size / 1e9
    steps = int(records.decode_steps[finished].sum())
    if steps:
        decoded = int((records.output_tokens[finished] - 1).sum())
        metrics["tokens_per_decode_step"] = decoded / steps
    metrics |= _host_metrics(result) | _latencies(result)
    return metrics | _rates(result, good)


def _host_metrics(result: SimulationResult) -> dict[str, float]:
    hosts, waits_s = result.hosts, result.requests.tool_wait_s
    if hosts is None:
        return {}
    metrics = {"front_end_utilization": hosts.front_end_utilization}
    waits_s = waits_s[result.requests.measured & ~np.isnan(waits_s)]
    if hosts.tool_cores:
        metrics["tool_core_utilization"] = hosts.tool_utilization
    if len(waits_s):
        metrics["tool_wait_mean_ms"] = float(waits_s.mean()) * 1e3
        metrics["tool_wait_p95_ms"] = float(np.percentile(waits_s, 95)) * 1e3
    return metrics


def _latencies(result: SimulationResult) -> dict[str, float]:
    records = result.requests
    finished = records.finished & records.measured
    tpot_s = records.tpot_s[finished]
    tpot_s = tpot_s[~np.isnan(tpot_s)]
    metrics = in_ms("ttft", records.ttft_s[finished])
    metrics |= e2e_metrics(records.e2e_s[finished], records.output_tokens[finished])
    if len(tpot_s):
        metrics |= in_ms("tpot", tpot_s)
        metrics |= speeds("tokens_per_s_per_user", tpot_s)
    return metrics | _gaps(result)


def e2e_metrics(e2e_s: Values, output_tokens: Tokens) -> dict[str, float]:
    """End-to-end latencies [k] and speeds of at least one request."""
    return in_ms("e2e", e2e_s) | speeds("e2e_tokens_per_s_per_user", e2e_s / output_tokens)


def summary(values: Values) -> dict[str, float]:
    """Each of `STATISTICS` of at least one value, and their standard deviation."""
    percentiles = np.percentile(values, list(_PERCENTILES.values())).tolist()
    found = dict(zip(_PERCENTILES, percentiles, strict=True))
    found["mean"] = float(values.mean())
    return {name: found[name] for name in STATISTICS} | {STANDARD_DEVIATION: float(values.std())}


def in_ms(stem: str, seconds: Values) -> dict[str, float]:
    """The summary of seconds, in milliseconds, by the names of the metrics."""
    return {f"{stem}_{name}_ms": value * 1e3 for name, value in summary(seconds).items()}


def speeds(stem: str, seconds_per_token: Values) -> dict[str, float]:
    """1 / the same statistic of the seconds per token, so that p95 is the slow tail.

    The standard deviation is that of the speeds of the requests.
    """
    found = summary(seconds_per_token)
    del found[STANDARD_DEVIATION]
    inverse = {f"{stem}_{name}": 1 / value for name, value in found.items() if value > 0}
    moving = seconds_per_token[seconds_per_token > 0]
    if len(moving):
        inverse[f"{stem}_{STANDARD_DEVIATION}"] = float((1 / moving).std())
    return inverse


def _gaps(result: SimulationResult) -> dict[str, float]:
    """Inter-token latency from the histogram: the middle of the bin in which the rank falls."""
    total = int(result.gap_counts.sum())
    if total == 0:
        return {}
    reached = np.cumsum(result.gap_counts)
    mean_s = result.gap_mean_s
    variance = float((result.gap_counts * (result.gap_middle_s - mean_s) ** 2).sum()) / total
    metrics = {"itl_mean_ms": mean_s * 1e3, "itl_std_ms": math.sqrt(variance) * 1e3}
    for name, percentile in _PERCENTILES.items():
        place = int(np.searchsorted(reached, math.ceil(percentile / 100.0 * total)))
        metrics[f"itl_{name}_ms"] = float(result.gap_middle_s[place]) * 1e3
    return metrics


def _rates(result: SimulationResult, good: Good | None) -> dict[str, float]:
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
        "input_tokens_per_s": requests * inputs,
        "output_tokens_per_s": output,
        "total_tokens_per_s": requests * (inputs + outputs),
    }
    if good is not None:
        share = float(good[records.measured].mean())
        metrics["slo_attainment"] = share
        finished = float(records.finished[records.measured].mean())
        metrics["goodput_requests_per_s"] = requests * share / finished
    return metrics


_PER_CHIP = (
    "input_tokens_per_s",
    "output_tokens_per_s",
    "total_tokens_per_s",
    "goodput_requests_per_s",
    "phase_input_tokens_per_s",
    "phase_output_tokens_per_s",
    "phase_total_tokens_per_s",
)


def per_chip(metrics: Mapping[str, float], chips: int, budget_chips: int) -> dict[str, float]:
    """The rates divided by the chips a deployment occupies, and by those of the whole budget."""
    divided = {f"{name}_per_chip": metrics[name] / chips for name in _PER_CHIP if name in metrics}
    if "output_tokens_per_s" in metrics:
        divided["output_tokens_per_s_per_budget_chip"] = (
            metrics["output_tokens_per_s"] / budget_chips
        )
    return divided
