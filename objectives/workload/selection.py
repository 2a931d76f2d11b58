"""Some requests of a workload, as a workload of its own."""

from __future__ import annotations

from dataclasses import replace

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
    offsets, places = _gathered_blocks(workload.block_offsets, rows)
    parent, gap_s = _adopted(workload, rows)
    return replace(
        workload,
        arrival_s=_from_first(workload.arrival_s[rows]),
        input_tokens=workload.input_tokens[rows],
        output_tokens=workload.output_tokens[rows],
        block_offsets=offsets,
        block_ids=dense(workload.block_ids[places]),
        session=trees(parent),
        parent=parent,
        gap_s=gap_s,
        kind=workload.kind[rows],
        class_id=workload.class_id[rows],
    )


def dense(ids: Numbers) -> Numbers:
    """Numbers from 0 in order of appearance, equal where `ids` are equal.

    >>> dense(np.array([7, 3, 7], np.int32)).tolist()
    [0, 1, 0]
    """
    _, appeared, number = np.unique(ids, return_index=True, return_inverse=True)
    rank = np.empty(len(appeared), dtype=np.int32)
    rank[np.argsort(appeared)] = np.arange(len(appeared), dtype=np.int32)
    return rank[number]


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


def _gathered_blocks(offsets: Tokens, rows: Tokens) -> tuple[Tokens, Tokens]:
    """New offsets [k + 1], and where each kept block stood in the old array."""
    counts = np.diff(offsets)[rows]
    kept = np.concatenate(([0], np.cumsum(counts)))
    shift = np.repeat(offsets[rows] - kept[:-1], counts)
    return kept, np.arange(kept[-1]) + shift
