"""How far off predictions are: quantiles of the residuals on measured points like them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from objectives.calibrated import calibration_of, shipped_calibration
from spaces.calibration import KNOWLEDGE, Knowledge, Quantity, Residuals
from spaces.chip import ChipSpec
from spaces.plan import DeploymentPlan
from spaces.site import Site

Band = tuple[float, float]

# Where no residual is known at all; a guess.
UNKNOWN: Band = (0.5, 2.0)
# Requests that spend more of their time than this before their first token stand in a queue.
STRAINED_TTFT_SHARE = 0.2


def ratios_of(
    quantity: Quantity, metrics: Mapping[str, float], plan: DeploymentPlan, site: Site
) -> Band:
    """Quantiles 10 % and 90 % of measured / predicted for deployments that are as well known.

    With several kinds of chips the one of which the least is known counts.
    """
    own = calibration_of(site)
    residuals = (own if own.residuals else shipped_calibration()).residuals
    known = known_of((site.chips[kind] for kind in plan.chips_by_kind), site)
    row = residuals_like(quantity, residuals, known, metrics, plan)
    return (row.low, row.high) if row else UNKNOWN


def known_of(chips: Iterable[ChipSpec], site: Site) -> Knowledge:
    """What measured points tell of the site's model on the least known of some chips."""
    own = calibration_of(site)
    known = [own.knowledge(site.model.name, chip.name, chip.vendor) for chip in chips]
    return max(known, key=KNOWLEDGE.index)


def residuals_like(
    quantity: Quantity,
    residuals: Iterable[Residuals],
    known: Knowledge,
    metrics: Mapping[str, float],
    plan: DeploymentPlan,
) -> Residuals | None:
    """The first row for a deployment as well known, else for one known less; None without any."""
    apart, strained = is_disaggregated(plan), is_strained(metrics)
    rows = [
        row
        for row in residuals
        if row.quantity == quantity and row.hold_for(disaggregated=apart, strained=strained)
    ]
    levels = KNOWLEDGE[KNOWLEDGE.index(known) :]
    return next((row for level in levels for row in rows if row.knowledge == level), None)


def is_disaggregated(plan: DeploymentPlan) -> bool:
    """Whether requests go from pool to pool: hand-over and routers add to what is not known."""
    return len(plan.serving_pools) > 1


def is_strained(metrics: Mapping[str, float]) -> bool:
    """Whether requests wait much of their time for their first token: near saturation, TTFT hangs
    on small differences between arrivals and capacity.
    """
    ttft, e2e = metrics.get("ttft_p50_ms", 0.0), metrics.get("e2e_p50_ms", 0.0)
    return e2e > 0 and ttft / e2e > STRAINED_TTFT_SHARE
