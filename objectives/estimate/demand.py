"""What a workload asks of a deployment, in a few numbers and a sample of its requests."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from objectives.metrics import STATISTICS
from objectives.workload import Workload, first
from objectives.workload.reuse import hit_curve
from spaces.plan import Load

Values = npt.NDArray[np.float64]

# Requests that stand for the others where seconds are averaged over lengths.
SAMPLE = 24
# Requests over which the reuse of prefixes is measured.
REUSE_REQUESTS = 2_000
# Sizes of cache, in tokens, at which it is measured.
_CACHES = tuple(int(2.0**k) for k in range(12, 30))
# Answers that differ by less keep requests that began together together.
_ALIKE = 0.05


@dataclass(frozen=True)
class Demand:
    """Means over the requests of a workload, and a sample of them.

    `recorded_rate` counts requests per second as recorded, `output_statistics` are the
    statistics of `objectives.metrics` in order.
    `context_tokens` is the mean context of a decoding request over its output tokens. Of the
    sample, `new_tokens` [2, s] are the tokens to compute and `cached_tokens` [2, s] those found in
    a cache: row 0 without any cache, row 1 with one that holds all there is. A cache of
    `cache_tokens` [k] tokens gives `cached_share` [k] of the hits of row 1. `gap_s` is the mean
    pause before a request, which the users of a closed loop spend waiting for nobody, `tool_s` the
    part of it in which a tool holds a core of the hosts. With
    `alike` all answers have about one length, so requests that began together end together.
    """

    requests: int
    sessions: int
    recorded_rate: float
    input_tokens: float
    output_tokens: float
    output_statistics: Values
    context_tokens: float
    gap_s: float
    tool_s: float
    alike: bool
    new_tokens: Values
    cached_tokens: Values
    cache_tokens: Values
    cached_share: Values

    def requests_per_s(self, load: Load | None) -> float:
        """Requests per second of an open loop; as recorded where the load says nothing of them."""
        if load is None or load.concurrency is not None:
            return self.recorded_rate
        if load.time_scale is not None:
            return self.recorded_rate / load.time_scale
        if load.session_rate is not None:
            return load.session_rate * self.requests / self.sessions
        return load.value

    def share_cached(self, cache_tokens: Values) -> Values:
        """Which part of all possible hits caches of such sizes give."""
        found: Values = np.interp(cache_tokens, self.cache_tokens, self.cached_share)
        return found


def demand_of(workload: Workload) -> Demand:
    """The demand of a workload."""
    inputs = workload.input_tokens.astype(np.float64)
    outputs = workload.output_tokens.astype(np.float64)
    hits = _possible_hits(workload)
    rows = _representatives(inputs - hits)
    new = np.maximum(np.stack([inputs[rows], inputs[rows] - hits[rows]]), 1.0)
    span_s = float(workload.arrival_s[-1])
    percentiles = np.percentile(outputs, [float(name[1:]) for name in STATISTICS[1:]])
    return Demand(
        requests=len(workload),
        sessions=workload.sessions,
        recorded_rate=len(workload) / span_s if span_s else math.inf,
        input_tokens=float(inputs.mean()),
        output_tokens=float(outputs.mean()),
        output_statistics=np.array([outputs.mean(), *percentiles]),
        context_tokens=float((outputs * (inputs + outputs / 2)).sum() / outputs.sum()),
        gap_s=float(workload.gap_s.mean()),
        tool_s=float(workload.tool_s.mean()),
        alike=bool(outputs.std() <= _ALIKE * outputs.mean()),
        new_tokens=new,
        cached_tokens=inputs[rows] - new,
        cache_tokens=np.array([0.0, *_CACHES]),
        cached_share=_share_by_size(workload),
    )


def _possible_hits(workload: Workload) -> Values:
    """Input tokens of each request that an earlier one had in the same place."""
    hits = np.zeros(len(workload))
    if not workload.block_tokens:
        return hits
    seen = np.zeros(int(workload.block_ids.max(initial=-1)) + 1, dtype=np.bool_)
    for request in range(len(workload)):
        blocks = workload.blocks(request)
        known = seen[blocks]
        run = len(known) if known.all() else int(known.argmin())
        # The last token is always computed: its output is the first token of the answer.
        hits[request] = min(run * workload.block_tokens, workload.input_tokens[request] - 1)
        seen[blocks] = True
    return hits


def _representatives(new: Values) -> npt.NDArray[np.int64]:
    """Requests at evenly spaced ranks of the tokens to compute."""
    order = np.argsort(new, kind="stable")
    count = min(SAMPLE, len(new))
    ranks = ((np.arange(count) + 0.5) * len(new) / count).astype(np.int64)
    return order[ranks].astype(np.int64)


def _share_by_size(workload: Workload) -> Values:
    some = first(workload, REUSE_REQUESTS)
    hits = np.array(hit_curve(some, _CACHES), dtype=np.float64)
    most = hits.max(initial=0.0)
    return np.concatenate([[0.0], hits / most if most else np.zeros(len(hits))])
