"""Promises to classes of requests: whose limit counts, and what the classes add up to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from objectives.measures import request_metrics
from objectives.slo import (
    Limits,
    Slo,
    check_classes,
    class_reports,
    good_requests,
    worst_attainment,
)
from objectives.workload import RequestClass, Workload
from objectives.workload.load import OfferedLoad
from spaces.documents import validated
from spaces.errors import InputError
from tests.objectives.simulator.worlds import workload_of
from tests.objectives.test_measures import run

CHAT = RequestClass("chat", 1, ttft_ms=15.0)
BATCH = RequestClass("batch", 0, e2e_ms=500.0)
ARRIVALS = [0.0, 1.0, 1.0, 3.0]
OUTPUTS = [11, 21, 31, 41]


def classed() -> Workload:
    """Requests of two classes in turn."""
    return replace(
        workload_of(ARRIVALS, [5] * 4, OUTPUTS),
        class_id=np.array([0, 1, 0, 1], dtype=np.int32),
        classes=(CHAT, BATCH),
    )


def test_the_most_special_limit_counts() -> None:
    slo = Slo(ttft_ms=100, tpot_ms=20, promised=True, classes={"batch": Limits(ttft_ms=900)})
    assert slo.of_class(CHAT) == Limits(ttft_ms=15, tpot_ms=20)
    assert slo.of_class(BATCH) == Limits(ttft_ms=900, tpot_ms=20, e2e_ms=500)
    assert Slo(ttft_ms=100).of_class(CHAT) == Limits(ttft_ms=100)


def test_each_request_is_held_to_its_class() -> None:
    result = run(OfferedLoad(np.array(ARRIVALS), 0), OUTPUTS, ARRIVALS)
    # 10 ms a step on one seat: TTFT 10, 10, 220 (behind the second) and 10 ms.
    assert result.requests.ttft_s == pytest.approx([0.01, 0.01, 0.22, 0.01])
    good = good_requests(Slo(promised=True), result.requests, classed())
    assert good.tolist() == [True, True, False, True]
    tight = Slo(promised=True, classes={"batch": Limits(e2e_ms=300)})
    assert good_requests(tight, result.requests, classed()).tolist() == [True, True, False, False]


def test_the_goodput_of_the_classes_sums_to_that_of_all() -> None:
    result = run(OfferedLoad(np.array(ARRIVALS), 0), OUTPUTS, ARRIVALS)
    slo = Slo(promised=True)
    metrics = request_metrics(result, good_requests(slo, result.requests, classed()))
    reports = class_reports(result.requests, classed(), slo, metrics["requests_per_s"])
    assert [(r.tenant, r.priority, r.requests) for r in reports] == [
        ("chat", 1, 2),
        ("batch", 0, 2),
    ]
    assert [r.metrics["slo_attainment"] for r in reports] == [0.5, 1.0]
    goodput = sum(r.metrics["goodput_requests_per_s"] for r in reports)
    assert goodput == pytest.approx(metrics["goodput_requests_per_s"])
    good = good_requests(slo, result.requests, classed())
    worst = worst_attainment(good, result.requests, classed())
    assert worst == {"slo_attainment_worst_class": 0.5}
    assert reports[0].limits == {"ttft_ms": 15, "tpot_ms": None, "e2e_ms": None}
    assert reports[1].metrics["e2e_p50_ms"] == pytest.approx((210 + 410) / 2)


def test_without_an_slo_classes_have_latencies_only() -> None:
    result = run(OfferedLoad(np.array(ARRIVALS), 0), OUTPUTS, ARRIVALS)
    reports = class_reports(result.requests, classed(), None, 1.0)
    assert "ttft_p95_ms" in reports[0].metrics


@pytest.mark.parametrize(
    ("slo", "key"),
    [
        ({}, ""),
        ({"ttft_ms": 0}, "ttft_ms"),
        ({"classes": {"chat": {"tpot_s": 3}}}, "classes.chat.tpot_s"),
        ({"classes": {"chat": {}}}, ""),
    ],
)
def test_wrong_limits_are_refused(slo: dict[str, Any], key: str) -> None:
    with pytest.raises(InputError) as caught:
        validated(Slo, slo, "test")
    assert caught.value.key == key


def test_a_tenant_that_is_not_there_is_named_with_the_nearest() -> None:
    with pytest.raises(InputError) as caught:
        check_classes(Slo(classes={"chatt": Limits(ttft_ms=5)}), classed())
    assert caught.value.key == "slo.classes.chatt"
    assert "chat" in caught.value.remedy
    check_classes(Slo(classes={"chat": Limits(ttft_ms=5)}), classed())


def test_promises_nobody_made_are_refused() -> None:
    with pytest.raises(InputError, match="promise nothing"):
        check_classes(Slo(promised=True), workload_of(ARRIVALS, [5] * 4, OUTPUTS))
