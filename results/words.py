"""Plans, loads and metrics in the words people use for them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from objectives.goals import Objective
from objectives.metrics import ALL_STATISTICS, metric_of, split_name
from results.trials import TrialRecord
from spaces.plan import DeploymentPlan, Pool

# Title in running text, heading of a table column with {} where the statistic stands; a metric
# that is not here goes by its own name.
_NAMES: dict[str, tuple[str, str]] = {
    "ttft": ("TTFT", "TTFT {} ms"),
    "tpot": ("TPOT", "TPOT {} ms"),
    "itl": ("ITL", "ITL {} ms"),
    "e2e": ("end-to-end latency", "E2E {} ms"),
    "tokens_per_s_per_user": ("decode speed per user", "tokens/s/user {}"),
    "e2e_tokens_per_s_per_user": ("end-to-end speed per user", "E2E tokens/s/user {}"),
    "requests_per_s": ("request throughput", "requests/s"),
    "output_tokens_per_s": ("output throughput", "output tokens/s"),
    "output_tokens_per_s_per_chip": ("output throughput per chip", "output tokens/s/chip"),
    "total_tokens_per_s_per_chip": ("total throughput per chip", "total tokens/s/chip"),
    "output_tokens_per_s_per_budget_chip": (
        "output throughput per chip of the budget",
        "output tokens/s/budget chip",
    ),
    "goodput_requests_per_s_per_chip": ("goodput per chip", "goodput requests/s/chip"),
    "slo_attainment": ("SLO attainment", "SLO attainment"),
    "usd_per_hour": ("price", "$/hour"),
    "usd_per_m_output_tokens": ("price of output", "$/M output tokens"),
    "power_kw": ("power", "power kW"),
    "power_drawn_kw": ("power drawn", "drawn kW"),
    "joules_per_output_token": ("energy of output", "J/output token"),
    "tokens_per_decode_step": ("tokens of a decode step", "tokens/decode step"),
    "hbm_gb_per_chip": ("peak HBM use per chip", "HBM GB/chip"),
}


def describe_plan(plan: DeploymentPlan) -> str:
    """The pools of a plan in the order in which a request meets them.

    >>> describe_plan(DeploymentPlan(model="m", topology="aggregated", pools=(
    ...     Pool(role="aggregated", chip="h200", replicas=4, tp=8),)))
    '4x[TP8] h200'
    """
    words = [f"{p.replicas}x[{describe_layout(p)}] {p.chip}" for p in plan.pools]
    if plan.splits_decode:
        words[-2:] = [f"{words[-2]} + {words[-1]} experts"]
    return " -> ".join(words)


def describe_layout(pool: Pool) -> str:
    """The parallel layout of one replica, as published charts write it.

    `TP8` splits each layer over 8 ranks; `TEP8` does so with whole experts on each rank; `DPAEP8`
    runs attention data-parallel with the experts spread over the same 8 ranks. Other mixtures name
    each degree above 1.

    >>> describe_layout(Pool(role="decode", chip="gb200", dp=32, ep=32, pp=2))
    'DPAEP32 PP2'
    """
    ranks = _expert_layout(pool)
    stages = [f"PP{pool.pp}"] if pool.pp > 1 else []
    return " ".join([*ranks, *stages]) or "TP1"


def describe_settings(plan: DeploymentPlan) -> str:
    """Engine, formats, KV tiers, routing threshold and drafts of a plan, on one line."""
    settings = [plan.settings(pool) for pool in plan.pools]
    engines = [f"{own.engine} {own.engine_version}".strip() for own in settings]
    words = [
        " -> ".join(dict.fromkeys(engines)),
        f"{plan.precision.weights} weights",
        f"{' -> '.join(dict.fromkeys(own.precision.kv for own in settings))} KV",
    ]
    if plan.kv.host_gb_per_chip:
        words.append(f"{plan.kv.host_gb_per_chip:g} GB host KV per chip")
    if plan.kv.swap_gb_per_chip:
        words.append(f"{plan.kv.swap_gb_per_chip:g} GB swap space per chip")
    if plan.kv.ssd_gb_per_chip:
        words.append(f"{plan.kv.ssd_gb_per_chip:g} GB disk KV per chip")
    if plan.kv.shared_gb:
        words.append(f"{plan.kv.shared_gb:g} GB shared KV store")
    if plan.kv.retention != "lru":
        limit = f" {plan.kv.idle_limit_s:g} s" if plan.kv.idle_limit_s else ""
        words.append(f"{plan.kv.retention}{limit}")
    if plan.kv.fetch != "always":
        words.append("fetched when faster than computed")
    if plan.kv.layerwise:
        words.append("fetched layer by layer")
    if plan.kv.prefetch:
        words.append("fetched ahead of admission")
    if plan.kv.handoff:
        words.append(f"handed over {plan.kv.handoff}")
    if plan.max_queued_requests:
        full = plan.when_full or "try-others"
        words.append(f"queues of at most {plan.max_queued_requests}, {full} when full")
    if plan.has_midfill:
        words.append(f"midfill up to {plan.midfill_tokens} uncached tokens")
    if plan.splits_decode:
        words.append(f"{plan.ping_pong} micro-batches between attention and experts")
    if plan.hosts:
        words.append(f"hosts {plan.hosts}")
    if plan.speculation:
        drafts = plan.speculation.depth
        words.append(f"{drafts} draft {'token' if drafts == 1 else 'tokens'} a decode step")
    return ", ".join(words)


def describe_load(plan: DeploymentPlan) -> str:
    """The load of a plan, or `no load` where it has none."""
    return str(plan.load) if plan.load is not None else "no load"


def baseline_in_words(
    baseline: Sequence[TrialRecord], objectives: Sequence[Objective]
) -> list[str]:
    """What the baseline is worth at each of its loads, a sentence each."""
    return [
        f"baseline {describe_plan(one.plan)}, {describe_load(one.plan)}: "
        + (
            ", ".join(
                f"{metric_title(o.metric)} {format_value(one.metrics[o.metric])}"
                for o in objectives
                if o.metric in one.metrics
            )
            or one.reason
        )
        + ("" if one.feasible or not one.metrics else " (beyond a constraint)")
        for one in baseline
    ]


def metric_title(name: str) -> str:
    """What a metric is called in running text.

    >>> metric_title("ttft_p95_ms"), metric_title("output_tokens_per_s_per_chip")
    ('TTFT p95', 'output throughput per chip')
    """
    metric, workload = split_name(name)
    stem, statistic = _stem_and_statistic(metric)
    title = _NAMES[stem][0] if stem in _NAMES else stem.replace("_", " ")
    return f"{title} {statistic}".strip() + (f" ({workload})" if workload else "")


def metric_heading(name: str) -> str:
    """What a metric is called above a table column, unit included.

    >>> metric_heading("ttft_p95_ms"), metric_heading("usd_per_m_output_tokens")
    ('TTFT p95 ms', '$/M output tokens')
    """
    metric, workload = split_name(name)
    stem, statistic = _stem_and_statistic(metric)
    unit = " ms" if metric.endswith("_ms") else ""
    heading = _NAMES[stem][1] if stem in _NAMES else f"{stem.replace('_', ' ')} {{}}{unit}"
    return heading.format(statistic).strip() + (f" @{workload}" if workload else "")


def metric_axis(name: str) -> str:
    """What a metric is called along an axis, unit included.

    >>> metric_axis("ttft_p95_ms")
    'TTFT p95 (ms)'
    """
    title = metric_title(name)
    return f"{title[0].upper()}{title[1:]} ({metric_of(name).unit})"


def format_value(value: float) -> str:
    """A figure with at least three significant digits and separated thousands.

    >>> [format_value(v) for v in (0.012, 3.14159, 42.195, 512.3, 12345.6, 8.0)]
    ['0.0120', '3.14', '42.2', '512', '12,346', '8']
    """
    size = abs(value)
    if size >= 100 or float(value).is_integer():
        return f"{value:,.0f}"
    if size >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if size >= 1 else f"{value:#.3g}"


def value_text(trial: TrialRecord, metric: str) -> str:
    """The value of a metric in a trial, or a dash where it has none.

    Of a replicated point the mean, and half the width of its confidence interval behind a sign.
    """
    value = trial.values.get(metric, math.nan)
    if math.isnan(value):
        return "-"
    half = trial.replicated.half_widths[metric] if trial.replicated is not None else 0.0
    return format_value(value) + (f" ± {format_value(half)}" if half else "")


def band_text(trial: TrialRecord, metric: str) -> str:
    """The uncertainty band of a metric in a trial; empty where it has none."""
    if metric not in trial.bands:
        return ""
    low, high = trial.bands[metric]
    return f"{format_value(low)} to {format_value(high)}"


def arrows(text: str) -> str:
    """The text with typeset arrows, for pages and pictures.

    >>> arrows("1x[TP4] h200 -> 1x[TP8] h200")
    '1x[TP4] h200 → 1x[TP8] h200'
    """
    return text.replace("->", "→")


def _expert_layout(pool: Pool) -> list[str]:
    if pool.ep == pool.tp > 1 and pool.dp == 1:
        return [f"TEP{pool.ep}"]
    if pool.ep == pool.dp > 1 and pool.tp == 1:
        return [f"DPAEP{pool.ep}"]
    degrees = {"TP": pool.tp, "DP": pool.dp, "EP": pool.ep}
    return [f"{name}{degree}" for name, degree in degrees.items() if degree > 1]


def _stem_and_statistic(name: str) -> tuple[str, str]:
    words = name.removesuffix("_ms").rsplit("_", 1)
    if len(words) == 2 and words[1] in ALL_STATISTICS:
        return words[0], words[1]
    return name, ""
