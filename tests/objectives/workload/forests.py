"""Small workloads with sessions, made up for tests."""

from __future__ import annotations

import numpy as np

from objectives.workload import RequestClass, Workload
from objectives.workload.chains import chained
from objectives.workload.workload import APPEND, COMPACTION, FIRST, SUBAGENT, USER


def forest() -> Workload:
    """Two sessions: 0-1-3-5 with a subagent 4 under 3, and 2-6, which is compacted."""
    parent = np.array([-1, 0, -1, 1, 3, 3, 2], np.int32)
    input_tokens = np.array([100, 140, 300, 200, 50, 260, 120])
    kept = np.array([0, 100, 0, 140, 0, 200, 64])
    offsets, ids = chained(parent, kept, input_tokens, 16)
    return Workload(
        name="forest",
        arrival_s=np.array([0.0, 3, 4, 6, 8, 9, 12]),
        input_tokens=input_tokens,
        output_tokens=np.array([20, 30, 5, 7, 9, 11, 13]),
        block_tokens=16,
        block_offsets=offsets,
        block_ids=ids,
        session=np.array([0, 0, 1, 0, 0, 0, 1], np.int32),
        parent=parent,
        gap_s=np.array([0, 1.5, 0, 2, 0, 2.5, 7]),
        kind=np.array([FIRST, APPEND, FIRST, USER, SUBAGENT, APPEND, COMPACTION], np.int8),
        class_id=np.array([0, 0, 1, 0, 0, 0, 1], np.int32),
        classes=(RequestClass(), RequestClass("acme", 2, ttft_ms=500)),
    )
