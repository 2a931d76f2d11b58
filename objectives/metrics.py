"""Every metric of a simulated deployment: one name, one unit, one definition."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

Better = Literal["higher", "lower", "neither"]
STATISTICS = ("mean", "p50", "p75", "p90", "p95", "p99")
STANDARD_DEVIATION = "std"
MEAN = "mean"  # stands in the place of a workload's name: `output_tokens_per_s@mean`
ALL_STATISTICS = (*STATISTICS, STANDARD_DEVIATION)


@dataclass(frozen=True, slots=True)
class Metric:
    """What a metric is called, in which unit, which way is better and what it means."""

    name: str
    unit: str
    better: Better
    meaning: str


def _latencies() -> list[Metric]:
    meanings = {
        "ttft": "time to first token: request sent to first token received",
        "tpot": "time per output token of a request: (end-to-end - TTFT) / (output tokens - 1)",
        "itl": "inter-token latency: each gap between consecutive tokens, pooled over requests",
        "e2e": "end-to-end latency: request sent to last token received",
    }
    return [
        Metric(f"{stem}_{statistic}_ms", "ms", "lower", f"{statistic} of {meaning}")
        for stem, meaning in meanings.items()
        for statistic in ALL_STATISTICS
    ]


def _speeds() -> list[Metric]:
    user = (
        "decode speed one user sees, 1 / TPOT at the same percentile (p95 is the slow tail); "
        "InferenceX's interactivity"
    )
    whole = (
        "1 / percentile of (end-to-end / output tokens), TTFT included; InferenceX's "
        "E2E-normalized interactivity, whose P90 is the axis of its charts"
    )
    return [
        *(
            Metric(f"tokens_per_s_per_user_{s}", "tokens/s/user", "higher", f"{s}: {user}")
            for s in ALL_STATISTICS
        ),
        *(
            Metric(f"e2e_tokens_per_s_per_user_{s}", "tokens/s/user", "higher", f"{s}: {whole}")
            for s in ALL_STATISTICS
        ),
    ]


def _throughputs() -> list[Metric]:
    return [
        Metric("requests_per_s", "requests/s", "higher", "requests finished per second"),
        Metric("output_tokens_per_s", "tokens/s", "higher", "output tokens per second"),
        Metric("input_tokens_per_s", "tokens/s", "higher", "input tokens per second, cached too"),
        Metric("total_tokens_per_s", "tokens/s", "higher", "input and output tokens per second"),
        Metric(
            "goodput_requests_per_s",
            "requests/s",
            "higher",
            "requests that met every SLO, per second",
        ),
        Metric(
            "input_tokens_per_s_per_chip",
            "tokens/s/chip",
            "higher",
            "input tokens per second, cached too, and chip the deployment occupies",
        ),
        Metric(
            "output_tokens_per_s_per_chip",
            "tokens/s/chip",
            "higher",
            "output tokens per second and chip the deployment occupies",
        ),
        Metric(
            "total_tokens_per_s_per_chip",
            "tokens/s/chip",
            "higher",
            "input and output tokens per second and chip the deployment occupies",
        ),
        Metric(
            "output_tokens_per_s_per_budget_chip",
            "tokens/s/chip",
            "higher",
            "output tokens per second and chip of the whole budget",
        ),
        Metric(
            "goodput_requests_per_s_per_chip",
            "requests/s/chip",
            "higher",
            "requests that met every SLO, per second and chip the deployment occupies",
        ),
        Metric("slo_attainment", "fraction", "higher", "share of requests that met every SLO"),
        Metric(
            "slo_attainment_worst_class",
            "fraction",
            "higher",
            "the lowest share of requests that met every SLO among the classes of the workload",
        ),
        Metric(
            "sessions_per_chip",
            "sessions/chip",
            "higher",
            "sessions alive in a closed loop (AA-AgentPerf's agents) per chip that is occupied",
        ),
        Metric(
            "sessions_per_kw",
            "sessions/kW",
            "higher",
            "sessions alive in a closed loop per provisioned kW",
        ),
    ]


def _phase() -> list[Metric]:
    """What InferenceX and AgentX count over the measured phase as a whole."""
    phase = "of the measured requests, from the first one sent to the last one finished"
    kinds = ("input", "output", "total")
    return [
        *(
            Metric(f"phase_{kind}_tokens_per_s", "tokens/s", "higher", f"{kind} tokens {phase}")
            for kind in kinds
        ),
        *(
            Metric(
                f"phase_{kind}_tokens_per_s_per_chip",
                "tokens/s/chip",
                "higher",
                f"{kind} tokens per chip that is occupied, {phase}",
            )
            for kind in kinds
        ),
        *(
            Metric(
                f"qps_{s}",
                "requests/s",
                "neither" if s == STANDARD_DEVIATION else "higher",
                f"{s} of the requests finished in each second of the measured phase",
            )
            for s in ALL_STATISTICS
        ),
        *(
            Metric(
                f"{kind}_tokens_{s}",
                "tokens",
                "neither",
                f"{s} of the {kind} tokens of the measured requests that finished",
            )
            for kind in ("input", "output")
            for s in ALL_STATISTICS
        ),
    ]


def _costs() -> list[Metric]:
    return [
        Metric("usd_per_hour", "USD/hour", "lower", "price of the chips the deployment occupies"),
        Metric(
            "usd_per_m_output_tokens", "USD/M tokens", "lower", "price per million output tokens"
        ),
        Metric(
            "power_kw",
            "kW",
            "lower",
            "power provisioned for the chips, with their share of host and network",
        ),
        Metric("joules_per_output_token", "J/token", "lower", "power over output tokens/s"),
        Metric("chips", "chips", "lower", "chips the deployment occupies"),
        Metric("hbm_gb_per_chip", "GB", "lower", "peak HBM use of the fullest chip"),
    ]


def _inner() -> list[Metric]:
    return [
        Metric(
            "prefix_hit_fraction",
            "fraction",
            "higher",
            "share of input tokens taken from a cache instead of computed",
        ),
        Metric(
            "hbm_hit_fraction",
            "fraction",
            "higher",
            "share of input tokens whose KV was in HBM",
        ),
        Metric(
            "host_hit_fraction",
            "fraction",
            "higher",
            "share of input tokens whose KV came from host memory",
        ),
        *(
            Metric(
                f"{tier}_hit_fraction",
                "fraction",
                "higher",
                f"share of input tokens whose KV came from {place}",
            )
            for tier, place in (("ssd", "local disks"), ("store", "the shared store"))
        ),
        *(
            Metric(name, "GB", "neither", f"KV {moved}, over the whole run")
            for name, moved in (
                ("host_fetched_gb", "fetched from host memory, or swapped with it"),
                ("ssd_fetched_gb", "fetched from local disks"),
                ("store_fetched_gb", "fetched from the shared store"),
                ("store_written_gb", "written to the shared store"),
                ("handed_off_gb", "moved from prefill or midfill to decode pools"),
            )
        ),
        Metric(
            "theoretical_hit_fraction",
            "fraction",
            "neither",
            "share of the prefix blocks of what was sent that a cache which forgets nothing has",
        ),
        Metric(
            "peak_kv_fraction",
            "fraction",
            "lower",
            "largest share of its KV blocks that any pool had in use",
        ),
        Metric(
            "tokens_per_decode_step",
            "tokens",
            "higher",
            "tokens a request gets from a decode step: 1, and the drafts accepted on average",
        ),
        Metric(
            "preemptions_per_request",
            "count",
            "lower",
            "how often a request lost its KV blocks and was computed again",
        ),
        Metric(
            "rejected_fraction",
            "fraction",
            "lower",
            "share of requests that can never fit and were turned away",
        ),
    ]


METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in [
        *_latencies(),
        *_speeds(),
        *_throughputs(),
        *_phase(),
        *_costs(),
        *_inner(),
    ]
}


def metric_of(name: str) -> Metric:
    """The metric of a name, which may say of which of several workloads: `ttft_p95_ms@chat`."""
    metric, workload = split_name(name)
    found = METRICS[metric]
    if not workload:
        return found
    of = "mean over time" if workload == MEAN else f"workload {workload}"
    return replace(found, name=name, meaning=f"{found.meaning}; {of}")


def split_name(name: str) -> tuple[str, str]:
    """A metric and the workload it is of, or empty.

    >>> split_name("ttft_p95_ms@chat"), split_name("chips")
    (('ttft_p95_ms', 'chat'), ('chips', ''))
    """
    metric, _, workload = name.partition("@")
    return metric, workload
