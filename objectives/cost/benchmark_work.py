"""What the benchmarked kernels of experts and attention have to do, as `kernel_work` says it.

Steps price these operators from a chip's measured fractions: on served points fitted tables came
out no better (attention) or worse (experts, whose benchmark times whole layers launched from the
host). They serve the operators' own score, and experts that are read from measured tables.
"""

from __future__ import annotations

import numpy as np

from objectives.cost.kernel_work import ACTIVATION_BYTES, INPUT_BYTES, Number, Work
from spaces.chip import ChipSpec
from spaces.precision import BYTES_PER_WEIGHT, Dtype


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
) -> Work:
    """One layer's routed experts on one of `ep` ranks, for `tokens` of all of them.

    Weights of the distinct experts, E/ep (1 - (1 - k/E)^T) (uniform top-k), and
    T k / ep (token, expert) pairs. `inner` is the width of the slice of an
    expert a rank holds, `skew` the exponent's place among the benchmark's routings (0 balanced,
    1 and 2 power laws of 1.01 and 1.2).
    """
    compute = chip.compute_dtype(dtype)
    held = experts / ep
    even = tokens * top_k / ep
    picked = held * (1.0 - (1.0 - top_k / experts) ** tokens)
    weights = matrices * width * inner
    per_row = width * (INPUT_BYTES[compute] + ACTIVATION_BYTES) + 4.0 * inner
    return Work(
        2.0 * weights * even / chip.peak_flops(compute),
        (picked * weights * BYTES_PER_WEIGHT[dtype] + even * per_row) / chip.hbm_bytes_per_s,
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
