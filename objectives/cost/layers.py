"""Token-dependent seconds of one layer on one chip: its products and its small kernels."""

from __future__ import annotations

import numpy as np

from objectives.cost.kernel_work import ACTIVATION_BYTES
from objectives.cost.machine import Machine
from objectives.cost.operators import gemm_s, small_kernels_s
from objectives.cost.step_costs import Floats
from spaces.model import DenseFfn, KdaAttention, MlaAttention, MoeFfn
from spaces.precision import Dtype
from spaces.sharding import AttentionGroup, kv_heads_per_chip

Shape = tuple[float, float]

# Launches of a layer beside its products and attention kernel, its norm apart.
# gqa: rotary embedding; cache write. mla: norms of the latents; rotary embedding with cache write.
# kda: convolution; decay; gates; output norm. dense: activation. moe: top-k; sum of outputs.
_SMALL_KERNELS = {"gqa": 2, "mla": 2, "kda": 4, "dense": 1, "moe": 2}


def attention_layer_s(
    machine: Machine,
    group: AttentionGroup,
    hidden_size: int,
    tp: int,
    dtype: Dtype,
    tokens: Floats,
) -> Floats:
    """Seconds of an attention layer without its look at the context."""
    shapes = attention_shapes(group, hidden_size, tp)
    moved = ACTIVATION_BYTES * (4 * hidden_size + 2 * shapes[0][0])
    kernels = _small_kernels(group, tp)
    seconds = _products_s(machine, shapes, dtype, tokens)
    seconds = seconds + small_kernels_s(machine, tokens, kernels, moved)
    if isinstance(group, KdaAttention):
        flops = tokens * group.state_flops_per_token / tp
        seconds = seconds + flops / machine.recurrence_flops
    return seconds


def feed_forward_layer_s(
    machine: Machine,
    group: DenseFfn | MoeFfn,
    hidden_size: int,
    tp: int,
    dtype: Dtype,
    tokens: Floats,
) -> Floats:
    """Seconds of a feed-forward layer, routed experts left out."""
    shapes = feed_forward_shapes(group, hidden_size, tp)
    inner = shapes[-1][1] if shapes else 0.0
    moved = ACTIVATION_BYTES * (4 * hidden_size + 3 * inner)
    kernels = _small_kernels(group, tp)
    seconds = _products_s(machine, shapes, dtype, tokens)
    if isinstance(group, MoeFfn):
        kernels += group.shared_experts > 0
        seconds = seconds + gemm_s(machine, tokens, group.routed_experts, hidden_size, "bf16")
    return seconds + small_kernels_s(machine, tokens, kernels, moved)


def attention_shapes(group: AttentionGroup, hidden_size: int, tp: int) -> list[Shape]:
    """Rows and columns of the products of an attention layer on one rank, the input's first.

    Keys and values of latent attention are expanded on the query and output side (absorbed):
    the same weights and FLOPs as the expansion itself.
    """
    if isinstance(group, MlaAttention):
        return _mla_shapes(group, hidden_size, tp)
    width = group.heads * group.head_dim / tp
    if isinstance(group, KdaAttention):
        entry = 4 * width + (group.head_dim + group.heads) / tp
        return [(entry, hidden_size), (width, group.head_dim), (hidden_size, width)]
    kept = 2 * kv_heads_per_chip(group, tp) * group.head_dim
    return [(width + kept, hidden_size), (hidden_size, width)]


def feed_forward_shapes(group: DenseFfn | MoeFfn, hidden_size: int, tp: int) -> list[Shape]:
    """Rows and columns of the products of a feed-forward layer, router and experts left out."""
    if isinstance(group, DenseFfn):
        return _gated_shapes(group.intermediate_size / tp, hidden_size)
    shapes: list[Shape] = []
    if group.latent_size:
        shapes += [(group.latent_size, hidden_size), (hidden_size, group.latent_size)]
    shared = group.shared_experts * group.shared_intermediate_size
    return shapes + (_gated_shapes(shared / tp, hidden_size) if shared else [])


def _gated_shapes(inner: float, hidden_size: int) -> list[Shape]:
    return [(2 * inner, hidden_size), (hidden_size, inner)]


def _mla_shapes(group: MlaAttention, hidden_size: int, tp: int) -> list[Shape]:
    heads = group.heads / tp
    latents = group.q_lora_rank + group.kv_lora_rank + group.qk_rope_head_dim
    values = heads * group.v_head_dim
    gate = [(values, float(hidden_size))] if group.output_gate else []
    return [
        (latents, hidden_size),
        (heads * (group.qk_nope_head_dim + group.qk_rope_head_dim), group.q_lora_rank),
        (heads * group.kv_lora_rank, group.qk_nope_head_dim),
        (values, group.kv_lora_rank),
        *gate,
        (hidden_size, values),
    ]


def _products_s(machine: Machine, shapes: list[Shape], dtype: Dtype, tokens: Floats) -> Floats:
    seconds = np.zeros_like(tokens)
    for rows, columns in shapes:
        seconds += gemm_s(machine, tokens, rows, columns, dtype)
    return seconds


def _small_kernels(group: AttentionGroup | DenseFfn | MoeFfn, tp: int) -> int:
    """Launches; under tensor parallelism the norm is part of the all-reduce before it."""
    return _SMALL_KERNELS[group.kind] + (tp == 1)
