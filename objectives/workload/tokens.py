"""Workloads counted by another tokenizer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from objectives.workload.chains import chained
from objectives.workload.turns import turn_tokens
from objectives.workload.workload import NO_PARENT, Workload
from spaces.errors import InputError


def token_scaled(workload: Workload, scale: float) -> Workload:
    """The workload with all lengths multiplied by `scale`, rounded, at least 1.

    What a request shares with the one it extends is multiplied too, and shared in whole blocks
    of the old size; what requests of different sessions share is told by their common blocks.
    """
    if scale == 1:
        return workload
    if not 0 < scale < 100:
        raise InputError(
            "a token scale must be above 0 and below 100", key="token_scale", value=scale
        )
    inputs = np.maximum(np.rint(workload.input_tokens * scale), 1).astype(np.int64)
    outputs = np.maximum(np.rint(workload.output_tokens * scale), 1).astype(np.int64)
    scaled = replace(workload, input_tokens=inputs, output_tokens=outputs)
    if not workload.block_tokens:
        return scaled
    kept = np.floor(turn_tokens(workload).kept * scale).astype(np.int64)
    offsets, ids = chained(_sources(workload), kept, inputs, workload.block_tokens)
    return replace(scaled, block_offsets=offsets, block_ids=ids)


def _sources(workload: Workload) -> np.ndarray:
    """The latest earlier request that had the last kept block of each request."""
    latest = np.full(int(workload.block_ids.max(initial=-1)) + 1, NO_PARENT, dtype=np.int32)
    sources = np.full(len(workload), NO_PARENT, dtype=np.int32)
    for request in range(len(workload)):
        blocks = workload.blocks(request)
        known = latest[blocks] != NO_PARENT
        run = len(known) if known.all() else int(known.argmin())
        if run:
            sources[request] = latest[blocks[run - 1]]
        latest[blocks] = request
    return sources
