"""Some requests of a workload, as a workload of its own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from objectives.workload.workload import Seconds, Tokens, Workload


def selected(workload: Workload, rows: Tokens) -> Workload:
    """The requests `rows` [k], in that order, as a whole workload.

    The arrivals of the chosen rows must not fall. They are counted from the first of them, and
    prefix blocks are numbered anew, densely from 0 in order of appearance.
    """
    offsets, places = _gathered_blocks(workload.block_offsets, rows)
    return replace(
        workload,
        arrival_s=_from_first(workload.arrival_s[rows]),
        input_tokens=workload.input_tokens[rows],
        output_tokens=workload.output_tokens[rows],
        block_offsets=offsets,
        block_ids=_dense(workload.block_ids[places]),
    )


def _from_first(arrival_s: Seconds) -> Seconds:
    return arrival_s - arrival_s[0] if len(arrival_s) else arrival_s


def _gathered_blocks(offsets: Tokens, rows: Tokens) -> tuple[Tokens, Tokens]:
    """New offsets [k + 1], and where each kept block stood in the old array."""
    counts = np.diff(offsets)[rows]
    kept = np.concatenate(([0], np.cumsum(counts)))
    shift = np.repeat(offsets[rows] - kept[:-1], counts)
    return kept, np.arange(kept[-1]) + shift


def _dense(ids: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    _, appeared, number = np.unique(ids, return_index=True, return_inverse=True)
    rank = np.empty(len(appeared), dtype=np.int32)
    rank[np.argsort(appeared)] = np.arange(len(appeared), dtype=np.int32)
    return rank[number]
