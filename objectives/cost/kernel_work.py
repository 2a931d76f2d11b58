"""What a kernel has to do: its two bounds on a chip, and the shape its efficiency depends on.

The same functions describe the benchmark rows that `scripts/fit_operators.py` fits and the
operators of a step, so a fitted table cannot be asked in other terms than it was fitted in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from objectives.cost.step_costs import Floats
from spaces.chip import ChipSpec
from spaces.precision import BYTES_PER_WEIGHT, ComputeDtype, Dtype

Number = float | Floats

ACTIVATION_BYTES = 2.0
INPUT_BYTES: dict[ComputeDtype, float] = {"bf16": 2.0, "fp8": 1.0, "fp4": 0.5}
_SHARPNESS = 4.0


@dataclass(frozen=True, slots=True)
class Work:
    """Seconds at the chip's peaks, multiplying and moving, and log2 of what shapes efficiency."""

    multiply_s: Number
    move_s: Number
    shape: Mapping[str, Number]

    def roofline_s(self) -> Number:
        """The larger bound, rounded where both are near: (a^4 + b^4)^(1/4).

        A smooth maximum as in the Roofline model's measured knees (Williams et al., CACM 2009);
        between 1 and 1.19 times the larger bound.
        """
        power = _SHARPNESS
        return (np.asarray(self.multiply_s) ** power + np.asarray(self.move_s) ** power) ** (
            1 / power
        )

    def multiply_share(self) -> Number:
        """How far multiplication is the bound: 1 where it alone is, 0 where moving is."""
        multiply = np.asarray(self.multiply_s) ** _SHARPNESS
        return multiply / (multiply + np.asarray(self.move_s) ** _SHARPNESS)


def gemm_work(chip: ChipSpec, tokens: Number, rows: Number, columns: Number, dtype: Dtype) -> Work:
    """Multiplying `tokens` vectors by `rows` x `columns` weights.

    2 t n k FLOPs; bytes are the weights in their stored format with its scales, the inputs in the
    format they are multiplied in, and bf16 outputs (Williams et al., CACM 2009).
    """
    compute = chip.compute_dtype(dtype)
    moved = rows * columns * BYTES_PER_WEIGHT[dtype] + tokens * (
        columns * INPUT_BYTES[compute] + rows * ACTIVATION_BYTES
    )
    return Work(
        2.0 * tokens * rows * columns / chip.peak_flops(compute),
        moved / chip.hbm_bytes_per_s,
        {"m": np.log2(tokens), "n": np.log2(rows), "k": np.log2(columns)},
    )


def experts_work(
    chip: ChipSpec,
    dtype: Dtype,
    tokens: Number,
    *,
    experts: Number,
    top_k: Number,
    ep: Number,
    width: Number,
    inner: Number,
    skew: Number,
    matrices: Number = 3.0,
    distinct: Number | None = None,
    rows: Number | None = None,
) -> Work:
    """One layer's routed experts on one of `ep` ranks, for `tokens` of all of them.

    Weights of the distinct experts, E/ep (1 - (1 - k/E)^T) where not given (uniform top-k), and
    `rows` (token, expert) pairs, T k / ep where not given. `inner` is the width of the slice of an
    expert a rank holds, `skew` the exponent's place among the benchmark's routings (0 balanced,
    1 and 2 power laws of 1.01 and 1.2).
    """
    compute = chip.compute_dtype(dtype)
    held = experts / ep
    even = tokens * top_k / ep
    picked = held * (1.0 - (1.0 - top_k / experts) ** tokens) if distinct is None else distinct
    handled = even if rows is None else rows
    weights = matrices * width * inner
    per_row = width * (INPUT_BYTES[compute] + ACTIVATION_BYTES) + 4.0 * inner
    return Work(
        2.0 * weights * handled / chip.peak_flops(compute),
        (picked * weights * BYTES_PER_WEIGHT[dtype] + handled * per_row) / chip.hbm_bytes_per_s,
        {
            "r": np.log2(even / held),
            "e": np.log2(held),
            "i": np.log2(inner),
            "h": np.log2(width),
            "t": np.log2(tokens),
            "p": np.log2(ep),
            "k": np.log2(top_k),
            "s": skew,
        },
    )


def decode_attention_work(
    chip: ChipSpec,
    requests: Number,
    context: Number,
    *,
    heads: Number,
    kv_heads: Number,
    head_dim: Number,
    kv_bytes: float,
    window: Number = 0.0,
) -> Work:
    """One token of each request attending to its context (FlashAttention's counts, 2205.14135).

    4 h d FLOPs and 2 h_kv d elements a (request, context token); queries and outputs in bf16. A
    window caps the context.
    """
    seen = np.where(np.asarray(window) > 0, np.minimum(context, window), context)
    moved = requests * (seen * kv_heads * 2.0 * head_dim * kv_bytes + heads * head_dim * 4.0)
    return Work(
        4.0 * requests * seen * heads * head_dim / chip.peak_flops("bf16"),
        moved / chip.hbm_bytes_per_s,
        {
            "b": np.log2(requests * kv_heads),
            "c": np.log2(seen),
            "g": np.log2(heads / kv_heads),
            "d": np.log2(head_dim),
        },
    )


def prefill_attention_work(
    chip: ChipSpec,
    prompts: Number,
    length: Number,
    *,
    heads: Number,
    kv_heads: Number,
    head_dim: Number,
    window: Number = 0.0,
    value_dim: Number | None = None,
) -> Work:
    """Causal attention of whole prompts (FlashAttention's counts, 2205.14135).

    2 h (d + d_v) FLOPs a pair of tokens, n (n + 1) / 2 pairs a prompt, fewer under a window;
    queries, keys, values and outputs once in bf16.
    """
    values = head_dim if value_dim is None else value_dim
    inside = np.minimum(length, np.where(np.asarray(window) > 0, window, length))
    pairs = inside * length - inside * (inside - 1.0) / 2.0
    moved = prompts * length * (heads + kv_heads) * (head_dim + values) * ACTIVATION_BYTES
    return Work(
        2.0 * prompts * pairs * heads * (head_dim + values) / chip.peak_flops("bf16"),
        moved / chip.hbm_bytes_per_s,
        {
            "b": np.log2(prompts * heads),
            "n": np.log2(length),
            "g": np.log2(heads / kv_heads),
            "d": np.log2(head_dim),
            "w": np.log2(inside / length),
        },
    )


def latent_decode_work(
    chip: ChipSpec, requests: Number, context: Number, *, heads: Number, kv_bytes: float
) -> Work:
    """Absorbed latent attention of one token a request (DeepSeek-V2, 2405.04434, section 2.1).

    A latent of 512 + 64 elements a context token is read once for all heads; 2 h (2 x 512 + 64)
    FLOPs a (request, context token).
    """
    moved = requests * (context * 576.0 * kv_bytes + heads * (576.0 + 512.0) * 2.0)
    return Work(
        2.0 * requests * context * heads * 1088.0 / chip.peak_flops("bf16"),
        moved / chip.hbm_bytes_per_s,
        {"b": np.log2(requests), "c": np.log2(context), "g": np.log2(heads)},
    )
