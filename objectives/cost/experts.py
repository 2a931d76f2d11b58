"""How many experts, and how many rows of tokens, the slowest expert-parallel rank has."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np

from objectives.cost.step_costs import Floats
from spaces.model import MoeFfn


def distinct_experts_of_slowest_rank(moe: MoeFfn, tokens: Floats, ranks: int) -> Floats:
    """Expected number of experts read by the rank that reads most.

    `tokens` of all ranks pick experts uniformly, E(1-(1-k/E)^T) of them in all (each is missed by
    a token with 1 - k/E; memory bound by them, arXiv 2512.09277); whether an expert
    is picked is taken as independent of the others, so a rank's count has the variance of a
    binomial, and the largest of `ranks` counts lies `_normal_maximum` deviations above the mean.
    It cannot exceed the experts a rank holds.
    """
    held = moe.routed_experts / ranks
    mean = np.array([moe.distinct_experts(count) for count in tokens]) / ranks
    deviation = np.sqrt(mean * np.maximum(0.0, 1.0 - mean / held))
    largest = mean + _normal_maximum(ranks) * deviation
    return np.minimum(largest, np.minimum(held, tokens * moe.top_k))


def rows_of_slowest_rank(moe: MoeFfn, tokens: Floats, ranks: int) -> Floats:
    """Expected (token, expert) pairs of the rank that has most of them.

    Each of `tokens` sends `top_k` different experts their rows; a rank's count has the variance
    of a hypergeometric draw summed over tokens. The largest of `ranks` counts is that of a normal
    with a first-order correction for its skew (Cornish and Fisher 1938).
    """
    mean = tokens * moe.top_k / ranks
    others = (moe.top_k - 1) / max(1, moe.routed_experts - 1)
    deviation = np.sqrt(np.maximum(mean * (1.0 - 1.0 / ranks) * (1.0 - others), 1e-12))
    maximum = _normal_maximum(ranks)
    skewed = maximum * deviation + max(0.0, maximum**2 - 1.0) / 6.0
    return np.minimum(mean + (skewed if ranks > 1 else 0.0), tokens * moe.top_k)


def imbalance(moe: MoeFfn, tokens: Floats, ranks: int) -> Floats:
    """Rows of the busiest rank over the mean.

    >>> moe = MoeFfn(layers=1, routed_experts=256, top_k=8, expert_intermediate_size=2048)
    >>> [round(float(x), 2) for x in imbalance(moe, np.array([8.0, 128.0, 1024.0]), 8)]
    [1.49, 1.12, 1.04]
    """
    return rows_of_slowest_rank(moe, tokens, ranks) * ranks / (tokens * moe.top_k)


def _normal_maximum(draws: int) -> float:
    """Expected largest of independent standard normals (Blom 1958)."""
    return NormalDist().inv_cdf((draws - 0.375) / (draws + 0.25)) if draws > 1 else 0.0
