"""How sure the predictions are: 80 % intervals from the residuals on measured points."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files

from objectives.metrics import METRICS
from spaces.documents import Document, parse_yaml, validated
from spaces.plan import DeploymentPlan
from spaces.site import Site

Band = tuple[float, float]


class Residuals(Document):
    """Quantiles (10 % and 90 %) of measured / predicted, and the points they rest on."""

    points: int
    tpot: Band
    ttft: Band
    throughput: Band


class ResidualTable(Document):
    """Residuals by chip vendor; `other` serves vendors without measurements."""

    source: str
    command: str
    checked: str
    vendors: dict[str, Residuals]


@cache
def residual_table() -> ResidualTable:
    """The table that ships with the project."""
    resource = files("objectives") / "uncertainty.yaml"
    data = parse_yaml(resource.read_text(encoding="utf-8"), "objectives/uncertainty.yaml")
    return validated(ResidualTable, data, "objectives/uncertainty.yaml")


def bands_of(metrics: Mapping[str, float], plan: DeploymentPlan, site: Site) -> dict[str, Band]:
    """The 80 % interval of each metric that rests on the cost model, as (low, high).

    The metric times the quantiles of its kind; where lower is the inverse of what was measured
    (tokens per second per user, price and energy per token) the quantiles are inverted. With chips
    of several vendors the widest interval counts.
    """
    bands = {}
    for name, value in metrics.items():
        ratios = _ratios(name, plan, site)
        if ratios is not None:
            bands[name] = (value * ratios[0], value * ratios[1])
    return bands


def _ratios(name: str, plan: DeploymentPlan, site: Site) -> Band | None:
    """The quantiles by which a metric is multiplied, or None when it rests on no prediction."""
    kind, inverse = _kind(name)
    if kind is None:
        return None
    table = residual_table().vendors
    found = [
        getattr(table.get(site.chips[pool.chip].vendor, table["other"]), kind)
        for pool in plan.pools
    ]
    low, high = min(band[0] for band in found), max(band[1] for band in found)
    return (1 / high, 1 / low) if inverse else (low, high)


def _kind(name: str) -> tuple[str | None, bool]:
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
