"""Every metric of a simulated deployment: one name, one unit, one definition."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

from spaces.plan import Role

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
    ]


def _promises() -> list[Metric]:
    """How many are served as promised, and how many a chip or a kW serves."""
    return [
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
            "power to provision: all chips at their limit, with their share of host and network",
        ),
        Metric(
            "power_drawn_kw",
            "kW",
            "lower",
            "mean power drawn, at most: chips at their limit in a step, at idle power else",
        ),
        Metric("joules_per_output_token", "J/token", "lower", "power drawn over output tokens/s"),
        Metric("chips", "chips", "lower", "chips the deployment occupies"),
        Metric("hbm_gb_per_chip", "GB", "lower", "peak HBM use of the fullest chip"),
    ]


def _hits() -> list[Metric]:
    """Where the KV of prompts came from."""
    shares = {
        "prefix": "taken from a cache instead of computed",
        "hbm": "whose KV was in HBM",
        "host": "whose KV came from host memory",
        "ssd": "whose KV came from local disks",
        "store": "whose KV came from the shared store",
    }
    theory = "share of the prefix blocks of what was sent that a cache which forgets nothing has"
    return [
        *(
            Metric(f"{of}_hit_fraction", "fraction", "higher", f"share of input tokens {which}")
            for of, which in shares.items()
        ),
        Metric("theoretical_hit_fraction", "fraction", "neither", theory),
    ]


def _kv_moved() -> list[Metric]:
    moved = {
        "host_fetched_gb": "fetched from host memory, or swapped with it",
        "ssd_fetched_gb": "fetched from local disks",
        "store_fetched_gb": "fetched from the shared store",
        "host_written_gb": "written to host memory as a tier",
        "ssd_written_gb": "written to local disks",
        "store_written_gb": "written to the shared store",
        "handed_off_gb": "moved from prefill or midfill to decode pools",
    }
    return [
        Metric(name, "GB", "neither", f"KV {how}, over the whole run")
        for name, how in moved.items()
    ]


def _hosts() -> list[Metric]:
    did = {
        "tool_core_utilization": "ran tools; mean over those for tools",
        "front_end_utilization": "worked for the front end; mean over those for it",
    }
    return [
        *(
            Metric(f"tool_wait_{s}_ms", "ms", "lower", f"{s} wait of a tool for a core")
            for s in ("mean", "p95")
        ),
        *(
            Metric(name, "fraction", "neither", f"share of the run in which cores of hosts {what}")
            for name, what in did.items()
        ),
    ]


def _strain() -> list[Metric]:
    """Signs of a deployment at its limits, and of how its answers come about."""
    return [
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
            "share of requests that were not served: they can never fit, or came to a full queue",
        ),
        Metric(
            "saturated",
            "0 or 1",
            "lower",
            "1 where an open loop offers more than the deployment serves, so that the queue grows",
        ),
        Metric(
            "queue_growth_ms",
            "ms",
            "lower",
            "how much longer the last third of an open loop waited for admission than the first",
        ),
        Metric(
            "queue_full_fraction",
            "fraction",
            "lower",
            "share of requests that were turned away because the queue was full",
        ),
        Metric(
            "fitted_operators",
            "count",
            "lower",
            "operators of which measured costs were asked for and none found: from the fit",
        ),
    ]


_OF_POOLS: dict[str, tuple[str, Better, str]] = {
    "utilization": (
        "fraction",
        "neither",
        "share of the run in which a step was in progress, or experts worked; mean over replicas",
    ),
    "bubble_fraction": (
        "fraction",
        "lower",
        "share of busy time in which pipeline stages, or attention and experts, waited",
    ),
    "queue_mean_ms": ("ms", "lower", "mean wait of a request for a seat and KV"),
    "queue_p95_ms": ("ms", "lower", "p95 of the waits of requests for a seat and KV"),
    "batch_mean": ("requests", "neither", "mean of the requests in a step of a replica"),
    "batch_p5": ("requests", "neither", "p5, over steps, of the requests in a step of a replica"),
    "batch_p50": ("requests", "neither", "p50, over steps, of the requests in a step"),
    "batch_p95": ("requests", "neither", "p95, over steps, of the requests in a step"),
    "batch_max": ("requests", "neither", "most requests in a step of a replica"),
    "expert_imbalance": (
        "ratio",
        "lower",
        "rows of the busiest expert rank over the mean, in an average step",
    ),
    "peak_kv_fraction": ("fraction", "lower", "largest share of a rank's KV blocks in use"),
    "hbm_gb_per_chip": ("GB", "lower", "peak HBM use of the fullest chip"),
    "kv_network_gb": ("GB", "neither", "KV moved to and from other pools and the store"),
    "kv_host_gb": ("GB", "neither", "KV moved over its host links"),
    "kv_ssd_gb": ("GB", "neither", "KV moved from its local disks"),
    "kv_copied_gb": ("GB", "neither", "KV converted, or staged in host memory, between pools"),
}
# What a pool of experts has, and one of attention alone has not.
_OF_EXPERTS = frozenset({"utilization", "bubble_fraction", "expert_imbalance", "hbm_gb_per_chip"})
_NOT_OF_ATTENTION = frozenset({"expert_imbalance"})


def pool_metric(role: Role, stem: str) -> str:
    """The name of a metric of the pool of a role.

    >>> pool_metric("decode-attention", "queue_p95_ms")
    'decode_attention_queue_p95_ms'
    """
    return f"{role.replace('-', '_')}_{stem}"


# Of each metric of a pool the role of the pool, and the metric without it.
POOL_METRICS: dict[str, tuple[Role, str]] = {
    pool_metric(role, stem): (role, stem)
    for role in get_args(Role)
    for stem in _OF_POOLS
    if role != "decode-experts" or stem in _OF_EXPERTS
    if role != "decode-attention" or stem not in _NOT_OF_ATTENTION
}


def _pools() -> list[Metric]:
    """What each pool does, waits for and holds; only of the pools that a plan has."""
    return [
        Metric(name, unit, better, f"{role} pool: {meaning}")
        for name, (role, stem) in POOL_METRICS.items()
        for unit, better, meaning in [_OF_POOLS[stem]]
    ]


METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in [
        *_latencies(),
        *_speeds(),
        *_throughputs(),
        *_promises(),
        *_phase(),
        *_costs(),
        *_hits(),
        *_kv_moved(),
        *_hosts(),
        *_strain(),
        *_pools(),
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


def pool_of(name: str) -> Role | None:
    """The role of the pool that a metric is of, if it is of one; whatever the workload."""
    role, _ = POOL_METRICS.get(split_name(name)[0], (None, ""))
    return role


def split_name(name: str) -> tuple[str, str]:
    """A metric and the workload it is of, or empty.

    >>> split_name("ttft_p95_ms@chat"), split_name("chips")
    (('ttft_p95_ms', 'chat'), ('chips', ''))
    """
    metric, _, workload = name.partition("@")
    return metric, workload
