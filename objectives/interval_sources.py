"""How the 80 % interval of each metric comes about; docs/uncertainty.md says why."""

from __future__ import annotations

from typing import Literal

from objectives.metrics import ALL_STATISTICS, METRICS, POOL_METRICS

# How an interval comes about: the metric times the quantiles of a quantity, or their inverses;
# `crowding` times anything from 1 to the quantiles of TPOT; `energy` times anything between those
# and the inverses of throughput's; `requests` from the records, with the latencies of each request
# at the ends of theirs; `runs` from two more runs, with all steps at the ends of TPOT's interval;
# `stated` has none.
Source = Literal[
    "ttft",
    "tpot",
    "1/tpot",
    "throughput",
    "1/throughput",
    "crowding",
    "energy",
    "requests",
    "runs",
    "stated",
]

_OF_THE_REQUESTS = "a property of the requests, not of predicted time"
_OF_THE_PLAN = "follows from the plan, its load and the catalogue, not from predicted time"
# Why a metric that is `stated` has no interval.
STATED: dict[str, str] = {
    **dict.fromkeys(
        (f"{side}_tokens_{s}" for side in ("input", "output") for s in ALL_STATISTICS),
        _OF_THE_REQUESTS,
    ),
    "theoretical_hit_fraction": _OF_THE_REQUESTS,
    **dict.fromkeys(
        ("chips", "usd_per_hour", "power_kw", "sessions_per_chip", "sessions_per_kw"),
        _OF_THE_PLAN,
    ),
    "tokens_per_decode_step": "follows from acceptance rates, which are assumed",
    "fitted_operators": "a count of what was read",
}


def _of_every_statistic(stem: str, unit: str = "") -> tuple[str, ...]:
    return tuple(f"{stem}_{s}{unit}" for s in ALL_STATISTICS)


def _rates(stem: str) -> tuple[str, ...]:
    return tuple(f"{stem}{kind}_tokens_per_s" for kind in ("input", "output", "total"))


_BY_SOURCE: dict[Source, tuple[str, ...]] = {
    "ttft": _of_every_statistic("ttft", "_ms"),
    "tpot": _of_every_statistic("tpot", "_ms") + _of_every_statistic("itl", "_ms"),
    "1/tpot": _of_every_statistic("tokens_per_s_per_user"),
    "throughput": (
        "requests_per_s",
        *(name for stem in ("", "phase_") for name in _rates(stem)),
        *(f"{name}_per_chip" for stem in ("", "phase_") for name in _rates(stem)),
        "output_tokens_per_s_per_budget_chip",
        *_of_every_statistic("qps"),
        "front_end_utilization",
        "tool_core_utilization",
    ),
    "1/throughput": ("usd_per_m_output_tokens",),
    "crowding": ("peak_kv_fraction", "power_drawn_kw"),
    "energy": ("joules_per_output_token",),
    "requests": (
        *_of_every_statistic("e2e", "_ms"),
        *_of_every_statistic("e2e_tokens_per_s_per_user"),
        *("slo_attainment", "slo_attainment_worst_class"),
        *("goodput_requests_per_s", "goodput_requests_per_s_per_chip"),
    ),
    # Decided at a threshold or by what is evicted, so that no factor on them is known.
    "runs": (
        *(f"{tier}_hit_fraction" for tier in ("prefix", "hbm", "host", "ssd", "store")),
        *(
            f"{tier}_{way}_gb"
            for tier in ("host", "ssd", "store")
            for way in ("fetched", "written")
        ),
        *("handed_off_gb", "preemptions_per_request", "rejected_fraction", "queue_full_fraction"),
        *("saturated", "queue_growth_ms", "hbm_gb_per_chip"),
        *("tool_wait_mean_ms", "tool_wait_p95_ms"),
    ),
    "stated": tuple(STATED),
}
_OF_POOLS: dict[Source, tuple[str, ...]] = {
    "ttft": ("queue_mean_ms", "queue_p95_ms"),
    "crowding": (
        *("utilization", "peak_kv_fraction"),
        *("batch_mean", "batch_p5", "batch_p50", "batch_p95", "batch_max"),
    ),
    "runs": (
        *("bubble_fraction", "expert_imbalance", "hbm_gb_per_chip"),
        *("kv_network_gb", "kv_host_gb", "kv_ssd_gb", "kv_copied_gb"),
    ),
}
_SOURCE_OF_STEM = {stem: source for source, stems in _OF_POOLS.items() for stem in stems}
SOURCES: dict[str, Source] = {
    **{name: source for source, names in _BY_SOURCE.items() for name in names},
    **{name: _SOURCE_OF_STEM[stem] for name, (_, stem) in POOL_METRICS.items()},
}
# Metrics with an interval in every trial; those of `runs` are told of single plans only.
BANDED = tuple(name for name in METRICS if SOURCES[name] not in ("runs", "stated"))
