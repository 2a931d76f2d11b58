"""Hit rate of a prefix cache against its size, all sizes in one pass over the requests."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from objectives.workload.workload import Numbers, Tokens, Workload


def hit_curve(workload: Workload, cache_tokens: Sequence[int]) -> list[int]:
    """Input tokens that a cache of each size would give, if each request ended at once.

    A hit is the run of leading blocks that the cache holds, times the block size, at most the
    input. Then the blocks of the request become the most recently used, its first block last, and
    the least recently used ones leave: the tail of a prefix goes before the head it is useless
    without. A partial block takes the room of a whole one.

    A block is held by every cache with more room than the number of different blocks used since
    its last use (Mattson et al., 1970), which a tree of sums over the requests gives. The ids
    must be those of prefixes: see `ids_tell_prefixes`.
    """
    if not workload.block_tokens:
        return [0] * len(cache_tokens)
    rooms = np.array([size // workload.block_tokens for size in cache_tokens], dtype=np.int64)
    hits = np.zeros(len(rooms), dtype=np.int64)
    blocks = int(workload.block_ids.max(initial=-1)) + 1
    last_use = np.full(blocks, -1, dtype=np.int64)
    used = _Sums(len(workload))
    lengths = workload.input_tokens.tolist()
    for request, (start, end) in enumerate(pairwise(workload.block_offsets.tolist())):
        chain = workload.block_ids[start:end]
        distances = _distances(last_use[chain], used)
        held = np.searchsorted(distances, rooms, side="left")
        hits += np.minimum(held * workload.block_tokens, lengths[request])
        _use(chain, request, last_use, used)
    found: list[int] = hits.tolist()
    return found


def ids_tell_prefixes(workload: Workload) -> bool:
    """Whether each block id always stands after the same block, so that it tells all before it."""
    ids = workload.block_ids
    if not len(ids):
        return True
    before = np.concatenate(([-1], ids[:-1]))
    starts = workload.block_offsets[:-1][np.diff(workload.block_offsets) > 0]
    before[starts] = -1
    told = np.full(int(ids.max()) + 1, -2, dtype=np.int64)
    told[ids] = before
    return bool((told[ids] == before).all())


def _distances(last: Tokens, used: _Sums) -> Tokens:
    """How many blocks were used since each block of the leading known run; rising."""
    known = int((last < 0).argmax()) if (last < 0).any() else len(last)
    last = last[:known]
    if not known:
        return last
    begins = np.flatnonzero(np.concatenate(([True], np.diff(last) != 0)))
    since = np.array([used.after(int(use)) for use in last[begins]], dtype=np.int64)
    counts = np.diff(np.append(begins, known))
    within = np.arange(known) - np.repeat(begins, counts)
    return np.maximum.accumulate(np.repeat(since, counts) + within)


def _use(chain: Numbers, request: int, last_use: Tokens, used: _Sums) -> None:
    """Move the blocks of a request from their last uses to this one."""
    before = last_use[chain]
    uses, counts = np.unique(before[before >= 0], return_counts=True)
    for use, count in zip(uses.tolist(), counts.tolist(), strict=True):
        used.add(use, -count)
    used.add(request, len(np.unique(chain)) if len(uses) > 1 else len(chain))
    last_use[chain] = request


class _Sums:
    """Counts at places, and their sum after any place, both in logarithmic time (Fenwick 1994)."""

    __slots__ = ("total", "tree")

    def __init__(self, places: int) -> None:
        self.tree = [0] * (places + 1)
        self.total = 0

    def add(self, place: int, count: int) -> None:
        """Add to the count at a place."""
        self.total += count
        node = place + 1
        while node < len(self.tree):
            self.tree[node] += count
            node += node & -node

    def after(self, place: int) -> int:
        """The sum of the counts at later places."""
        before, node = 0, place + 1
        while node:
            before += self.tree[node]
            node &= node - 1
        return self.total - before
