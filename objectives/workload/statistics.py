"""What is in a workload: lengths, arrivals and how much of the input a prefix cache can give."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Iterator
from itertools import pairwise, takewhile
from typing import Any

import numpy as np

from objectives.workload.reuse import hit_curve, ids_tell_prefixes
from objectives.workload.session_statistics import lengths, session_statistics, uncached_by_kind
from objectives.workload.turns import hit_tokens, turn_tokens
from objectives.workload.workload import Seconds, Workload

CACHE_TOKENS = (
    10_000,
    30_000,
    100_000,
    300_000,
    1_000_000,
    3_000_000,
    10_000_000,
    30_000_000,
    100_000_000,
    300_000_000,
)
BINS_S = (1, 10, 60)


def describe(workload: Workload) -> dict[str, Any]:
    """Statistics of at least one request, ready for JSON; `None` where one is not defined.

    `rate_per_s` is (n - 1) / span. Percentiles are interpolated linearly. The index of
    dispersion is the variance of the requests counted in bins of so many seconds over their mean:
    1 for Poisson arrivals. The bins start at the first request and the last one may be partial.
    `distinct_arrival_times` far below `requests` shows that a trace records times on a grid, and
    that its burstiness below the grid's step is an artefact. `prefix_reuse` is `None` without
    prefix information; see `prefix_hit_tokens` for the fractions of input tokens in it.
    `sessions` is about turns and pauses, `uncached_by_kind` about the input that a cache which
    forgets nothing does not give: each kind of turn has its requests, tokens and share of them.
    """
    arrival_s = workload.arrival_s
    parts = turn_tokens(workload)
    span_s = float(arrival_s[-1])
    return {
        "requests": len(workload),
        "span_s": span_s,
        "rate_per_s": (len(workload) - 1) / span_s if span_s > 0 else None,
        "distinct_arrival_times": len(np.unique(arrival_s)),
        "interarrival_cv": _interarrival_cv(arrival_s),
        "dispersion_by_bin_s": {str(width): _dispersion(arrival_s, width) for width in BINS_S},
        "input_tokens": lengths(workload.input_tokens),
        "output_tokens": lengths(workload.output_tokens),
        "prefix_reuse": _prefix_reuse(workload) if workload.block_tokens else None,
        "sessions": session_statistics(workload, parts),
        "uncached_by_kind": uncached_by_kind(workload, parts),
    }


def prefix_hit_tokens(workload: Workload, cache_tokens: int | None = None) -> int:
    """Input tokens a prefix cache of `cache_tokens` would give if each request ended at once.

    A hit is the run of leading blocks that the cache holds, times the block size, at most the
    input. Then the blocks of the request become the most recently used, its first block last, and
    the least recently used ones leave: the tail of a prefix goes before the head it is useless
    without. A partial block takes the room of a whole one. Without `cache_tokens` nothing leaves.
    """
    if not workload.block_tokens:
        return 0
    room = sys.maxsize if cache_tokens is None else cache_tokens // workload.block_tokens
    cache: OrderedDict[int, None] = OrderedDict()
    hit_tokens = 0
    for blocks, input_tokens in zip(
        _blocks_by_request(workload), workload.input_tokens.tolist(), strict=True
    ):
        run = sum(1 for _ in takewhile(cache.__contains__, blocks))
        hit_tokens += min(run * workload.block_tokens, input_tokens)
        _use(cache, blocks, room)
    return hit_tokens


def _use(cache: OrderedDict[int, None], blocks: list[int], room: int) -> None:
    for block in reversed(blocks):
        cache[block] = None
        cache.move_to_end(block)
    while len(cache) > room:
        cache.popitem(last=False)


def _blocks_by_request(workload: Workload) -> Iterator[list[int]]:
    for start, end in pairwise(workload.block_offsets.tolist()):
        yield workload.block_ids[start:end].tolist()


def _prefix_reuse(workload: Workload) -> dict[str, Any]:
    input_tokens = int(workload.input_tokens.sum())
    hits = int(hit_tokens(workload).sum())
    return {
        "block_tokens": workload.block_tokens,
        "distinct_blocks": int(np.count_nonzero(np.bincount(workload.block_ids))),
        "hit_tokens": hits,
        "input_tokens": input_tokens,
        "hit_fraction": hits / input_tokens,
        "hit_by_cache_tokens": {
            str(size): hit / input_tokens
            for size, hit in zip(CACHE_TOKENS, _hits_by_size(workload), strict=True)
        },
    }


def _hits_by_size(workload: Workload) -> list[int]:
    if ids_tell_prefixes(workload):
        return hit_curve(workload, CACHE_TOKENS)
    return [prefix_hit_tokens(workload, size) for size in CACHE_TOKENS]


def _interarrival_cv(arrival_s: Seconds) -> float | None:
    gaps = np.diff(arrival_s)
    return float(gaps.std() / gaps.mean()) if arrival_s[-1] > 0 else None


def _dispersion(arrival_s: Seconds, width_s: float) -> float | None:
    """Variance over mean of the counts, from the bins in use only: a span may hold billions."""
    numbers = np.floor(arrival_s / width_s)
    _, counts = np.unique(numbers, return_counts=True)
    bins = float(numbers[-1]) + 1
    if bins < 2:
        return None
    mean = len(arrival_s) / bins
    return float((counts.astype(float) ** 2).sum() / bins - mean**2) / mean
