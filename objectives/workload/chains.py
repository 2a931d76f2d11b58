"""Prefix blocks of turns, from how many tokens each one keeps of an earlier request."""

from __future__ import annotations

import numpy as np

from objectives.workload.workload import Numbers, Tokens
from spaces.errors import InputError

MOST_BLOCKS = 2**31 - 1


def chained(
    source: Numbers, kept_tokens: Tokens, input_tokens: Tokens, block_tokens: int
) -> tuple[Tokens, Numbers]:
    """Offsets [n + 1] and ids of the blocks of `n` requests.

    Request `i` begins with the first `kept_tokens[i]` tokens of request `source[i]`, an earlier
    one, or where that is -1 of a beginning that is common to all. They are shared in whole
    blocks, rounded down, and all other blocks are new. Raises `InputError` beyond 2^31 blocks.

    >>> offsets, ids = chained(np.array([-1, 0], np.int32), np.array([0, 9]), np.array([9, 12]), 4)
    >>> ids.tolist()
    [0, 1, 2, 0, 1, 3]
    """
    counts = -(-input_tokens // block_tokens)
    there = np.where(source < 0, kept_tokens, input_tokens[np.maximum(source, 0)])
    shared = np.minimum(np.minimum(kept_tokens, there), input_tokens) // block_tokens
    offsets = np.concatenate(([0], np.cumsum(counts)))
    common = int(shared[source < 0].max(initial=0))
    fresh = common + int((counts - shared).sum())
    if fresh > MOST_BLOCKS:
        raise InputError(
            f"a workload may have at most {MOST_BLOCKS} different prefix blocks", value=fresh
        )
    ids = np.empty(int(offsets[-1]), dtype=np.int32)
    number = common
    rows = zip(offsets.tolist(), counts.tolist(), shared.tolist(), source.tolist(), strict=False)
    starts = offsets.tolist()
    for start, count, keeps, earlier in rows:
        if keeps and earlier < 0:
            ids[start : start + keeps] = np.arange(keeps, dtype=np.int32)
        elif keeps:
            ids[start : start + keeps] = ids[starts[earlier] : starts[earlier] + keeps]
        ids[start + keeps : start + count] = np.arange(
            number, number + count - keeps, dtype=np.int32
        )
        number += count - keeps
    return offsets, ids
