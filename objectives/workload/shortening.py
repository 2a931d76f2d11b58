"""A shorter run of the same kind: some of the requests, enough of them to reach the load.

What a short run says is biased: filling up and running dry weigh more in it, and its tails rest on
fewer requests. Whoever uses one must learn by how much it is off.
"""

from __future__ import annotations

import math

import numpy as np

from objectives.workload.offering import LoadRules
from objectives.workload.selection import selected
from objectives.workload.workload import Tokens, Workload
from spaces.plan import Load

# A short run of a closed loop has so many sessions for each user, or the load is not reached.
SESSIONS_PER_USER = 2
# Fewer requests say nothing of tails.
LEAST_REQUESTS = 50
# A run that is not at least so much shorter is not worth it.
LARGEST_SHARE = 0.5


def shortened(
    workload: Workload, load: Load | None, rules: LoadRules, fraction: float
) -> tuple[Workload, LoadRules] | None:
    """A run of about `fraction` of the requests, or of the time that bounds it; None where none
    of at most half the length would do.

    Warm-up keeps its length. A run that its rules end, after requests or a time, ends earlier.
    Else an open loop sends the first of the requests, and a closed one whole sessions, the first
    ones, so that late turns with long contexts have their share.
    """
    users = (load.concurrency or 0) if load else 0
    if rules.requests is not None or rules.duration_s is not None:
        return _ended_earlier(workload, users, rules, fraction)
    wanted = rules.warm_up_requests + _part(len(workload) - rules.warm_up_requests, fraction)
    rows = _sessions(workload, users, wanted) if users else np.arange(max(wanted, LEAST_REQUESTS))
    if len(rows) > LARGEST_SHARE * len(workload):
        return None
    return selected(workload, rows), rules


def _ended_earlier(
    workload: Workload, users: int, rules: LoadRules, fraction: float
) -> tuple[Workload, LoadRules] | None:
    ends: dict[str, float] = {}
    if rules.requests is not None:
        whole = rules.requests if rules.recycle else min(rules.requests, len(workload))
        wanted = rules.warm_up_requests + _part(whole - rules.warm_up_requests, fraction)
        ends["requests"] = max(wanted, SESSIONS_PER_USER * users, LEAST_REQUESTS)
        if ends["requests"] > LARGEST_SHARE * whole:
            return None
    if rules.duration_s is not None:
        measured_s = rules.duration_s - rules.warm_up_s
        ends["duration_s"] = rules.warm_up_s + fraction * measured_s
        if ends["duration_s"] > LARGEST_SHARE * rules.duration_s:
            return None
    return workload, rules.model_copy(update=ends)


def _part(count: int, fraction: float) -> int:
    return math.ceil(fraction * count)


def _sessions(workload: Workload, users: int, wanted: int) -> Tokens:
    """The rows of the first sessions that together have so many requests, and that are enough."""
    sizes = np.cumsum(np.bincount(workload.session))
    enough = int(np.searchsorted(sizes, max(wanted, LEAST_REQUESTS))) + 1
    return np.flatnonzero(workload.session < max(enough, SESSIONS_PER_USER * users))
