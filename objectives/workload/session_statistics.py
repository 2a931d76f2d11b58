"""Sessions in numbers: turns, pauses, what turns add, and which kinds of turns are not cached."""

from __future__ import annotations

from typing import Any

import numpy as np

from objectives.workload.turns import TurnTokens
from objectives.workload.workload import KINDS, NO_PARENT, Seconds, Tokens, Workload


def session_statistics(workload: Workload, parts: TurnTokens) -> dict[str, Any] | None:
    """Turns of a session, pauses by kind of turn and what turns add; `None` without any session
    of several turns. `pauses_over_s` has the share of pauses that are longer."""
    later = workload.parent != NO_PARENT
    if not later.any():
        return None
    gaps = workload.gap_s[later]
    kinds = workload.kind[later]
    extending = later & (parts.extends != NO_PARENT)
    return {
        "count": workload.sessions,
        "turns": lengths(np.bincount(workload.session)),
        "new_tokens": lengths((workload.input_tokens - parts.kept)[extending]),
        "external_tokens": lengths(parts.external[extending]),
        "pause_s": {
            KINDS[kind]: lengths(gaps[kinds == kind]) for kind in np.unique(kinds).tolist()
        },
        "pauses_over_s": {
            str(limit): float(np.mean(gaps > limit)) for limit in (10, 60, 300, 3600)
        },
        "largest_context_tokens": lengths(_largest(workload)),
    }


def uncached_by_kind(workload: Workload, parts: TurnTokens) -> dict[str, Any]:
    """Requests, uncached input tokens and their share of all uncached ones, by kind of turn."""
    uncached = workload.input_tokens - parts.kept
    total = int(uncached.sum())
    found = {}
    for kind, name in enumerate(KINDS):
        mine = workload.kind == kind
        if mine.any():
            tokens = int(uncached[mine].sum())
            found[name] = {
                "requests": int(np.count_nonzero(mine)),
                "uncached_tokens": tokens,
                "share": tokens / total if total else 0.0,
            }
    return found


def lengths(values: Tokens | Seconds) -> dict[str, float | int] | None:
    """Mean, percentiles (interpolated linearly) and maximum; `None` of no values."""
    if not len(values):
        return None
    p50, p90, p99 = np.percentile(values, (50, 90, 99)).tolist()
    return {
        "mean": float(values.mean()),
        "p50": p50,
        "p90": p90,
        "p99": p99,
        "max": values.max().item(),
    }


def _largest(workload: Workload) -> Tokens:
    largest = np.zeros(workload.sessions, dtype=np.int64)
    np.maximum.at(largest, workload.session, workload.input_tokens)
    return largest
