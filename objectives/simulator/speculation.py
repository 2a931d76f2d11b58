"""How many decode steps an answer takes when some of the drafts of each step are accepted.

A step gives its own token and the accepted drafts: 1 + k tokens with probability p_k - p_(k+1),
where p_k is the rate at position k, p_0 = 1. The steps of an answer are those in which such draws
first reach its length; they are drawn once for each request, exactly, and the tokens come evenly
over them. So the spread over requests is right, a step's time stays affine in the steps of a leap,
and only where in its answer a request was lucky is left out.
"""

from __future__ import annotations

import zlib

import numpy as np
import numpy.typing as npt

from objectives.simulator.scenario import Scenario

Tokens = npt.NDArray[np.int64]


def steps_of_answers(scenario: Scenario, output_tokens: Tokens) -> Tokens:
    """Decode steps [n] of each answer: one for each token after the first, or fewer with drafts.

    A request that was handed over has no drafts in its first step on the decode pool.
    """
    lacking = np.maximum(np.asarray(output_tokens, np.int64) - 1, 0)
    if not scenario.acceptance:
        return lacking
    stream = np.random.default_rng([scenario.seed, zlib.crc32(b"speculation")])
    first = np.minimum(lacking, 1) if len(scenario.pools) > 1 else np.zeros_like(lacking)
    return first + steps_to_reach(lacking - first, scenario.acceptance, stream)


def steps_to_reach(
    tokens: Tokens, acceptance: tuple[float, ...], stream: np.random.Generator
) -> Tokens:
    """Steps [n] until the tokens they give first reach `tokens` [n].

    No step gives more than all its drafts and one token, so as many steps as can surely not
    overshoot are drawn at once (how many give how much is multinomial), then of the rest again:
    the draws grow with the logarithm of the length.
    """
    most = len(acceptance) + 1
    rates = np.array([1.0, *acceptance, 0.0])
    chances = rates[:-1] - rates[1:]
    left, steps = tokens.copy(), np.zeros_like(tokens)
    while (unfinished := np.flatnonzero(left > 0)).size:
        sure = (left[unfinished] - 1) // most + 1
        counts = stream.multinomial(sure, chances)
        left[unfinished] -= counts @ np.arange(1, most + 1)
        steps[unfinished] += sure
    return steps
