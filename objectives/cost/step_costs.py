"""The cost of an engine step, reduced to arrays that a compiled loop can index."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class StepCosts:
    """Seconds of one engine step of one replica; axis 0 of the arrays is the pipeline stage.

    A step holds, on each attention data-parallel rank, `n` decoding requests whose contexts sum to
    `S` tokens (`W` where each is cut at the window), and prefill chunks of `c` new tokens behind
    `p` cached ones. `tokens` = `n` + sum of `c`. Stage `s` then takes

        [first stage] host_s + request_s * requests of all ranks
        + token_s[s](tokens of the busiest rank) + expert_s[s](tokens of all ranks)
        + [any chunk in the step] eager_s[s]
        + the largest over ranks of
            [n > 0] decode_base_s[s] + n * decode_request_s[s]
            + S * decode_token_s[s] + W * decode_window_token_s[s]
            + for each chunk: prefill_base_s[s]
                + max(pairs * pair_s[s] + windowed pairs * window_pair_s[s], (p + c) * read_s[s])

    where `pairs` = c p + c (c + 1) / 2 are the query-key pairs of a causal chunk, and windowed
    pairs count at most `window_tokens` keys for each query. Tables are read by linear
    interpolation over `grid`, and kept at its ends. In a step without chunks `token_s` is read at
    `graph_tokens[n]`, the next captured CUDA-graph size.
    """

    grid: Ints
    token_s: Floats
    expert_s: Floats
    graph_tokens: Ints
    eager_s: Floats
    decode_base_s: Floats
    decode_request_s: Floats
    decode_token_s: Floats
    decode_window_token_s: Floats
    prefill_base_s: Floats
    pair_s: Floats
    window_pair_s: Floats
    read_s: Floats
    window_tokens: int
    host_s: float
    request_s: float

    @property
    def stages(self) -> int:
        """Pipeline stages."""
        return len(self.eager_s)
