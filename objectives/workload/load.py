"""When the requests of a workload are sent, and which of them can be sent at all."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from objectives.workload.selection import selected
from objectives.workload.workload import Seconds, Workload
from spaces.errors import InputError
from spaces.plan import Load


@dataclass(frozen=True, slots=True)
class OfferedLoad:
    """How `n` requests reach the deployment, always in the order of the workload.

    Open loop: `concurrency` is 0, and request `i` is sent at `arrival_s[i]` whatever the
    deployment does. Closed loop: `concurrency` requests are kept in flight; `arrival_s` is 0 for
    all, and the next request is sent at the moment an earlier one ends.
    """

    arrival_s: Seconds
    concurrency: int


def offered(workload: Workload, load: Load | None) -> OfferedLoad:
    """The requests of `workload` under `load`.

    Without a load they arrive as recorded. A `request_rate` stretches the recorded times by one
    factor, so that (n - 1) / span, the mean rate of `n` requests, equals the rate and the
    recorded bursts keep their shape. A `concurrency` sets the times aside. Raises `InputError`
    where a rate is asked of requests that all arrive at one moment, so that nothing can be
    stretched.
    """
    if load is None:
        return OfferedLoad(workload.arrival_s, 0)
    if load.concurrency is not None:
        return OfferedLoad(np.zeros(len(workload)), load.concurrency)
    assert load.request_rate is not None, "a load is a concurrency or a request rate"
    return OfferedLoad(workload.arrival_s * _stretch(workload, load.request_rate), 0)


def fitting(workload: Workload, max_context_tokens: int) -> tuple[Workload, int]:
    """The requests whose input and output fit into the context, and how many others there were.

    A request fits if input + output <= `max_context_tokens`. Arrivals of the rest count from the
    first of them.
    """
    fits = workload.input_tokens + workload.output_tokens <= max_context_tokens
    if fits.all():
        return workload, 0
    return selected(workload, np.flatnonzero(fits)), int(np.count_nonzero(~fits))


def first(workload: Workload, requests: int) -> Workload:
    """The first `requests` of a workload, or all of it where it is shorter."""
    if requests < 1:
        raise InputError("at least one request is needed", key="requests", value=requests)
    if requests >= len(workload):
        return workload
    return selected(workload, np.arange(requests))


def _stretch(workload: Workload, request_rate: float) -> float:
    span_s = float(workload.arrival_s[-1]) if len(workload) else 0.0
    if span_s == 0:
        raise InputError(
            "a request rate needs arrival times to stretch, but all requests arrive at one moment",
            where=workload.name,
            key="request_rate",
            value=request_rate,
            remedy="ask for a concurrency, or use synthetic arrivals",
        )
    return (len(workload) - 1) / span_s / request_rate
