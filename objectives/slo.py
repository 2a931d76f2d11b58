"""What requests are promised, all alike or by class, and which of them got it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from pydantic import Field, PositiveFloat, model_validator

from objectives.measures import Good, Latencies, in_ms
from objectives.simulator import RequestRecords
from objectives.workload import RequestClass, Workload
from spaces.documents import Document
from spaces.errors import InputError, did_you_mean

LIMITS = ("ttft_ms", "tpot_ms", "e2e_ms")
_CLASS_STATISTICS = ("p50", "p95")


class Limits(Document):
    """The longest that one request may take, in milliseconds; those left out are not looked at."""

    ttft_ms: PositiveFloat | None = None
    tpot_ms: PositiveFloat | None = None
    e2e_ms: PositiveFloat | None = None


class Slo(Limits):
    """What one request must meet to count as good.

    `classes` has other limits for some tenants. With `promised` the limits that the workload
    itself gives its classes hold, where it gives them. Of the three sources of a limit the most
    special one counts: that of the tenant, that of the class, the one for all.
    """

    classes: dict[str, Limits] = Field(default_factory=dict)
    promised: bool = False

    @model_validator(mode="after")
    def _some_limit(self) -> Slo:
        every = [self, *self.classes.values()]
        if not self.promised and not any(getattr(each, key) for each in every for key in LIMITS):
            raise InputError(
                "an SLO needs a limit",
                value="none",
                remedy=f"give one of {', '.join(LIMITS)}, or promised: true for those of the "
                "workload's classes",
            )
        return self

    @property
    def for_all_alike(self) -> bool:
        """Whether one set of limits holds for all requests."""
        return not self.promised and not self.classes

    def of_class(self, told: RequestClass) -> Limits:
        """The limits for the requests of one class."""
        own = self.classes.get(told.tenant, Limits())
        found = {}
        for key in LIMITS:
            promised = getattr(told, key) if self.promised else None
            sources = (getattr(own, key), promised, getattr(self, key))
            found[key] = next((limit for limit in sources if limit is not None), None)
        return Limits(**found)


def check_classes(slo: Slo | None, *workloads: Workload) -> None:
    """Raise an `InputError` where the SLO names a tenant that no workload has, or has no limit.

    Each workload must have a limit of its own.
    """
    if slo is None:
        return
    tenants = sorted({each.tenant for workload in workloads for each in workload.classes})
    for name in slo.classes:
        if name not in tenants:
            raise InputError(
                "the workload has no such tenant",
                key=f"slo.classes.{name}",
                value=name,
                remedy=f"{did_you_mean(name, tenants)}; its tenants are {', '.join(tenants)}",
            )
    for workload in workloads:
        limits = [slo.of_class(each) for each in workload.classes]
        if not any(getattr(each, key) for each in limits for key in LIMITS):
            raise InputError(
                "the classes of the workload promise nothing",
                key="slo.promised",
                value=True,
                remedy=f"give one of {', '.join(LIMITS)}",
            )


def good_requests(
    slo: Slo, records: RequestRecords, workload: Workload, latencies: Latencies | None = None
) -> Good:
    """Whether each request [n] finished within every limit of its class; one token has no TPOT.

    `latencies` may be others than those of the records.
    """
    limits = [slo.of_class(each) for each in workload.classes]
    told = latencies or Latencies.of(records)
    good = records.finished.copy()
    measured = (told.ttft_s, np.nan_to_num(told.tpot_s, nan=0.0), told.e2e_s)
    for key, seconds in zip(LIMITS, measured, strict=True):
        most_ms = np.array([getattr(each, key) or np.inf for each in limits])
        good &= ~(seconds * 1e3 > most_ms[workload.class_id])
    return good


@dataclass(frozen=True, slots=True)
class ClassReport:
    """How the requests of one class fared; `metrics` are named as those of all requests.

    `bands` hold their 80 % intervals, where a single plan is explained.
    """

    tenant: str
    priority: int
    limits: dict[str, float | None]
    requests: int
    metrics: dict[str, float]
    bands: Mapping[str, tuple[float, float]] = field(default_factory=dict)


def class_reports(
    records: RequestRecords,
    workload: Workload,
    slo: Slo | None,
    requests_per_s: float | None,
    latencies: Latencies | None = None,
) -> tuple[ClassReport, ...]:
    """The classes of the workload that have measured requests, in their order.

    The goodput of the classes sums to that of all. `latencies` may be others than the records'.
    """
    told_s = latencies or Latencies.of(records)
    good = None if slo is None else good_requests(slo, records, workload, told_s)
    finished = max(1, int(np.count_nonzero(records.finished & records.measured)))
    reports = []
    for place, told in enumerate(workload.classes):
        mine = records.measured & (workload.class_id == place)
        if not mine.any():
            continue
        metrics = _class_latencies(told_s, mine & records.finished)
        if good is not None:
            metrics["slo_attainment"] = float(good[mine].mean())
            if requests_per_s is not None:
                metrics["goodput_requests_per_s"] = (
                    requests_per_s * np.count_nonzero(good & mine) / finished
                )
        limits = Limits() if slo is None else slo.of_class(told)
        reports.append(
            ClassReport(told.tenant, told.priority, limits.model_dump(), int(mine.sum()), metrics)
        )
    return tuple(reports)


def worst_attainment(good: Good, records: RequestRecords, workload: Workload) -> dict[str, float]:
    """The metric of the class that fares worst, where these requests [n] met their SLOs."""
    of_class = workload.class_id[records.measured]
    shares = [float(good[records.measured][of_class == one].mean()) for one in np.unique(of_class)]
    return {"slo_attainment_worst_class": min(shares)} if shares else {}


def _class_latencies(told: Latencies, rows: npt.NDArray[np.bool_]) -> dict[str, float]:
    tpot_s = told.tpot_s[rows]
    samples = {
        "ttft": told.ttft_s[rows],
        "tpot": tpot_s[~np.isnan(tpot_s)],
        "e2e": told.e2e_s[rows],
    }
    metrics: dict[str, float] = {}
    for stem, seconds in samples.items():
        if len(seconds):
            found = in_ms(stem, seconds)
            keys = [f"{stem}_{statistic}_ms" for statistic in _CLASS_STATISTICS]
            metrics |= {key: found[key] for key in keys}
    return metrics
