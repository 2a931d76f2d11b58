"""How sure the predictions are: 80 % intervals from the residuals on measured points."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from objectives.calibrated import calibration_of, shipped_calibration
from objectives.metrics import METRICS
from spaces.calibration import KNOWLEDGE, Knowledge, Quantity, Residuals
from spaces.plan import DeploymentPlan
from spaces.site import Site

Band = tuple[float, float]

# Where no residual is known at all; a guess.
UNKNOWN: Band = (0.5, 2.0)
# Requests that spend more of their time than this before their first token stand in a queue.
STRAINED_TTFT_SHARE = 0.2


def bands_of(metrics: Mapping[str, float], plan: DeploymentPlan, site: Site) -> dict[str, Band]:
    """The 80 % interval of each metric that rests on the cost model, as (low, high).

    The metric times the quantiles of its kind; where lower is the inverse of what was measured
    (tokens per second per user, price and energy per token) the quantiles are inverted.
    """
    bands = {}
    for name, value in metrics.items():
        kind, inverse = _kind(name)
        if kind is not None:
            low, high = ratios_of(kind, metrics, plan, site)
            if inverse:
                low, high = 1 / high, 1 / low
            bands[name] = (value * low, value * high)
    return bands


def ratios_of(
    quantity: Quantity, metrics: Mapping[str, float], plan: DeploymentPlan, site: Site
) -> Band:
    """Quantiles 10 % and 90 % of measured / predicted for deployments that are as well known.

    With several kinds of chips the one of which the least is known counts.
    """
    own = calibration_of(site)
    calibration = own if own.residuals else shipped_calibration()
    chips = [site.chips[kind] for kind in plan.chips_by_kind]
    known = [own.knowledge(site.model.name, chip.name, chip.vendor) for chip in chips]
    least = max(known, key=KNOWLEDGE.index)
    rows = [
        row
        for row in calibration.residuals
        if row.quantity == quantity
        and row.hold_for(disaggregated=is_disaggregated(plan), strained=is_strained(metrics))
    ]
    return _interval(rows, least)


def is_disaggregated(plan: DeploymentPlan) -> bool:
    """Whether requests go from pool to pool: hand-over and routers add to what is not known."""
    return len(plan.serving_pools) > 1


def is_strained(metrics: Mapping[str, float]) -> bool:
    """Whether requests wait much of their time for their first token: near saturation, TTFT hangs
    on small differences between arrivals and capacity.
    """
    ttft, e2e = metrics.get("ttft_p50_ms", 0.0), metrics.get("e2e_p50_ms", 0.0)
    return e2e > 0 and ttft / e2e > STRAINED_TTFT_SHARE


def _interval(rows: Sequence[Residuals], known: Knowledge) -> Band:
    """The first row of the same knowledge, or else of the next lesser one that has some."""
    for level in KNOWLEDGE[KNOWLEDGE.index(known) :]:
        for row in rows:
            if row.knowledge == level:
                return row.low, row.high
    return UNKNOWN


def _kind(name: str) -> tuple[Quantity | None, bool]:
    """Which measured quantity a metric moves with, and whether it moves against it."""
    if name not in METRICS:
        return None, False
    if name.startswith("ttft"):
        return "ttft", False
    if name.startswith(("tpot", "itl", "e2e_m", "e2e_p", "e2e_s")):
        return "tpot", False
    if "per_s_per_user" in name:
        return "tpot", True
    if name.startswith(("usd_per_m", "joules")):
        return "throughput", True
    if "_per_s" in name or name == "qps_mean":
        return "throughput", False
    return None, False
