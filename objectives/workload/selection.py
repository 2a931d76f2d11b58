"""Some requests of a workload, as a workload of its own."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np

from objectives.workload.workload import NO_PARENT, Numbers, Seconds, Tokens, Workload


def selected(workload: Workload, rows: Tokens) -> Workload:
    """The requests `rows` [k], in that order, as a whole workload.

    The arrivals of the chosen rows must not fall, and a turn must not come before one it waits
    for. Arrivals are counted from the first of them; sessions and prefix blocks are numbered
    anew, densely from 0 in order of appearance. A turn whose parent is left out waits for the
    nearest ancestor that is kept, and the pauses before the ones left out are added to its own;
    without such an ancestor it starts a session at its recorded time.
    """
    offsets, ids = _gathered_blocks(workload, rows)
    parent, gap_s = _adopted(workload, rows)
    return replace(
        workload,
        arrival_s=_from_first(workload.arrival_s[rows]),
        input_tokens=workload.input_tokens[rows],
        output_tokens=workload.output_tokens[rows],
        block_offsets=offsets,
        block_ids=dense(ids),
        session=trees(parent),
        parent=parent,
        gap_s=gap_s,
        kind=workload.kind[rows],
        class_id=workload.class_id[rows],
    )


def dense(ids: Numbers) -> Numbers:
    """Numbers from 0 in order of appearance, equal where `ids`, which are not negative, are equal.

    >>> dense(np.array([7, 3, 7], np.int32)).tolist()
    [0, 1, 0]
    """
    if not len(ids):
        return np.zeros(0, dtype=np.int32)
    first = np.full(int(ids.max()) + 1, len(ids), dtype=np.int64)
    np.minimum.at(first, ids, np.arange(len(ids)))
    order = np.argsort(first, kind="stable")
    rank = np.empty(len(first), dtype=np.int32)
    rank[order] = np.arange(len(first), dtype=np.int32)
    return rank[ids]


def trees(parent: Numbers) -> Numbers:
    """The session of each request [n]: that of its parent, or a new one without.

    >>> trees(np.array([-1, -1, 0, 2], np.int32)).tolist()
    [0, 1, 0, 0]
    """
    root = np.where(parent == NO_PARENT, np.arange(len(parent), dtype=np.int32), parent)
    while len(root) and not np.array_equal(root, root[root]):
        root = root[root]
    return dense(root)


def _from_first(arrival_s: Seconds) -> Seconds:
    return arrival_s - arrival_s[0] if len(arrival_s) else arrival_s


def _adopted(workload: Workload, rows: Tokens) -> tuple[Numbers, Seconds]:
    """The parents by their new numbers, and the pauses after them."""
    place = np.full(len(workload) + 1, NO_PARENT, dtype=np.int32)
    place[rows] = np.arange(len(rows), dtype=np.int32)
    parent, gap_s = workload.parent[rows].copy(), workload.gap_s[rows].copy()
    orphans = np.flatnonzero((parent != NO_PARENT) & (place[parent] == NO_PARENT))
    while len(orphans):
        gap_s[orphans] += workload.gap_s[parent[orphans]]
        parent[orphans] = workload.parent[parent[orphans]]
        lost = (parent[orphans] != NO_PARENT) & (place[parent[orphans]] == NO_PARENT)
        orphans = orphans[lost]
    gap_s[parent == NO_PARENT] = 0.0
    return place[parent], gap_s


def _gathered_blocks(workload: Workload, rows: Tokens) -> tuple[Tokens, Numbers]:
    """Offsets [k + 1] and ids of the blocks of the rows, copied row by row to save memory."""
    counts = np.diff(workload.block_offsets)[rows]
    offsets = np.concatenate(([0], np.cumsum(counts)))
    ids = np.empty(int(offsets[-1]), dtype=np.int32)
    for row, (start, end) in zip(rows.tolist(), pairwise(offsets.tolist()), strict=True):
        ids[start:end] = workload.blocks(row)
    return offsets, ids
