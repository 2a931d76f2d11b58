"""How far a workload is from another, and from each preset."""

from __future__ import annotations

from typing import Any

import numpy as np

from objectives.preset_names import preset_names
from objectives.workload.presets import workload_of
from objectives.workload.turns import turn_tokens
from objectives.workload.workload import NO_PARENT, Seconds, Workload

REQUESTS_OF_A_PRESET = 2_000


def preset_distances(workload: Workload, seed: int = 1) -> dict[str, Any]:
    """The distance from each preset, the nearest first, with its parts; see `distance`."""
    own = quantities(workload)
    found = {}
    for name in preset_names():
        parts = distance(own, quantities(workload_of(name, REQUESTS_OF_A_PRESET, seed)))
        found[name] = {"distance": float(np.mean(list(parts.values()))), **parts}
    return dict(sorted(found.items(), key=lambda item: (item[1]["distance"], item[0])))


def quantities(workload: Workload) -> dict[str, Seconds]:
    """Sorted samples of what makes a workload: lengths, turns, pauses, and the cached share.

    Without sessions of several turns there are no pauses; without prefix information nothing is
    known of the cached share.
    """
    found: dict[str, Any] = {
        "input_tokens": workload.input_tokens,
        "output_tokens": workload.output_tokens,
        "turns": np.bincount(workload.session),
        "pause_s": workload.gap_s[workload.parent != NO_PARENT],
    }
    if workload.block_tokens:
        parts = turn_tokens(workload)
        found["new_tokens"] = workload.input_tokens - parts.kept
        found["cached_share"] = parts.kept / workload.input_tokens
    return {name: np.sort(values).astype(float) for name, values in found.items()}


def distance(one: dict[str, Seconds], other: dict[str, Seconds]) -> dict[str, float]:
    """The Kolmogorov-Smirnov distance of each quantity that is known of both, from 0 to 1.

    It is the largest difference of the two distribution functions. A quantity that only one has
    values of is 1 apart.

    >>> distance({"turns": np.array([1.0, 1, 1, 1])}, {"turns": np.array([1.0, 1, 1, 5])})
    {'turns': 0.25}
    """
    return {
        name: _kolmogorov_smirnov(one[name], other[name])
        for name in one
        if name in other and (len(one[name]) or len(other[name]))
    }


def _kolmogorov_smirnov(one: Seconds, other: Seconds) -> float:
    if not len(one) or not len(other):
        return 1.0
    points = np.concatenate((one, other))
    below = [
        np.searchsorted(values, points, side="right") / len(values) for values in (one, other)
    ]
    return float(np.abs(below[0] - below[1]).max())
