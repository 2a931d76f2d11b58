"""Turns that lost most of their context: compactions and invalidations, told by the prefix."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from objectives.workload.turns import hit_tokens
from objectives.workload.workload import (
    APPEND,
    COMPACTION,
    INVALIDATION,
    NO_PARENT,
    USER,
    Workload,
)

# A compaction is an input below 60 % of the one before, from over 60k tokens; an invalidation a
# longer one of over 50k tokens of which a cache that forgets nothing holds less than half.
COMPACTED_TO = 0.6
COMPACTED_FROM_TOKENS = 60_000
INVALID_BELOW = 0.5
INVALID_FROM_TOKENS = 50_000


def kinds_by_prefix(workload: Workload) -> Workload:
    """The workload with its compactions and invalidations marked among the other turns."""
    before = workload.input_tokens[np.maximum(workload.parent, 0)]
    turn = (workload.parent != NO_PARENT) & np.isin(workload.kind, (APPEND, USER))
    turn &= workload.session == workload.session[np.maximum(workload.parent, 0)]
    compacted = turn & (before > COMPACTED_FROM_TOKENS)
    compacted &= workload.input_tokens < COMPACTED_TO * before
    large = turn & ~compacted & (workload.input_tokens > INVALID_FROM_TOKENS)
    kind = workload.kind.copy()
    kind[compacted] = COMPACTION
    if workload.block_tokens and large.any():
        lost = hit_tokens(workload) < INVALID_BELOW * workload.input_tokens
        kind[large & lost] = INVALIDATION
    return replace(workload, kind=kind)
