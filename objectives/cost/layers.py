"""Token-dependent seconds of one layer on one chip: its products and its small kernels."""

from __future__ import annotations

import numpy as np

from objectives.cost.fitted import spared_us
from objectives.cost.kernel_work import ACTIVATION_BYTES
from objectives.cost.machine import Machine
from objectives.cost.operators import gemm_s, small_kernels_s
from objectives.cost.step_costs import Floats
from spaces.model import (
    AttentionGroup,
    CompressedAttention,
    DenseFfn,
    GdnAttention,
    GqaAttention,
    MambaAttention,
    MlaAttention,
    MoeFfn,
    RecurrentAttention,
    SparseIndex,
)
from spaces.precision import Dtype
from spaces.sharding import kv_heads_per_chip

Shape = tuple[float, float]

# Launches of a layer beside its products and attention kernel, its norm apart.
# gqa: rotary embedding; cache write. mla: norms of the latents; rotary embedding with cache write.
# kda, gdn: convolution; decay; gates; output norm. mamba: convolution; steps; gated output norm.
# compressed: norms; rotary embedding with cache write; pooling with its write; rotation of the
# output. dense: activation. moe: top-k; sum of outputs.
_SMALL_KERNELS = {
    "gqa": 2,
    "mla": 2,
    "kda": 4,
    "gdn": 4,
    "mamba": 3,
    "compressed": 4,
    "dense": 1,
    "moe": 2,
}
# Of these, what an engine's own operators hold: TensorRT-LLM turns, writes and, where KV is fp8,
# converts keys in one kernel (invokeQKVPreprocessing), and hands its experts the router's logits,
# so that top-k and sum are timed with them (_torch/modules/fused_moe; so does their benchmark).
_WITHIN_OPERATORS = {"trtllm": {"gqa": 1, "moe": 2}}
# Launches for each half of a layer that quantise inputs no kernel hands on in fp8, of which each
# half has two: TensorRT-LLM does it in the norm after a sum, in attention and in the activation
# (_torch/models/modeling_llama.py, RESIDUAL_RMS_NORM_QUANT_FP8), but not in a norm of its own;
# vLLM's passes leave the activation (of others it is taken so).
_QUANTISATIONS = {"trtllm": 0.0}
_OTHER_QUANTISATIONS = 0.5
# Of a norm over the heads of all ranks, their exchange apart: squares summed; heads scaled.
HEADS_NORM_KERNELS = 2
# Of an indexer, scores and top-k apart: norm and rotary embedding; quantisation with cache write.
_INDEX_KERNELS = 2
# Of mixing residual streams around a part of a layer: norm of the streams; weights made doubly
# stochastic; streams read into one; streams written.
_MIXER_KERNELS = 4


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
    kernels = _small_kernels(machine, group, tp) + _quantisations(machine, dtype, tp)
    products = _products_s(machine, shapes, dtype, tokens)
    return products + small_kernels_s(machine, tokens, kernels, moved)


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
    kernels = _small_kernels(machine, group, tp) + _quantisations(machine, dtype, tp)
    seconds = _products_s(machine, shapes, dtype, tokens)
    if isinstance(group, MoeFfn):
        kernels += group.shared_experts > 0
        seconds = seconds + gemm_s(machine, tokens, group.routed_experts, hidden_size, "bf16")
    return seconds + small_kernels_s(machine, tokens, kernels, moved)


def attention_operators(machine: Machine, group: AttentionGroup, hidden_size: int, tp: int) -> int:
    """Operators of an attention layer: products, small kernels, the look at the context."""
    products = len(attention_shapes(group, hidden_size, tp))
    return products + _small_kernels(machine, group, tp) + 1


def feed_forward_operators(
    machine: Machine, group: DenseFfn | MoeFfn, hidden_size: int, tp: int
) -> int:
    """Operators of a feed-forward layer: products and small kernels; router and experts."""
    found = len(feed_forward_shapes(group, hidden_size, tp))
    found += _small_kernels(machine, group, tp)
    return found + (2 + (group.shared_experts > 0) if isinstance(group, MoeFfn) else 0)


def mixer_operators(streams: int) -> int:
    """Operators of mixing residual streams around one part of a layer."""
    return 0 if streams == 1 else 1 + _MIXER_KERNELS


def stream_mixer_s(machine: Machine, hidden_size: int, streams: int, tokens: Floats) -> Floats:
    """Seconds of reading several residual streams before a part of a layer and writing after it.

    Products with `streams` x (`streams` + 2) mixing weights in bf16, and the streams moved: read
    for the weights, read and written to be mixed. Every tensor-parallel rank does it all
    (manifold-constrained hyper-connections, arXiv 2512.24880).
    """
    if streams == 1:
        return np.zeros_like(tokens)
    width = streams * hidden_size
    product = gemm_s(machine, tokens, streams * (streams + 2), width, "bf16")
    moved = 3 * width * ACTIVATION_BYTES
    return product + small_kernels_s(machine, tokens, _MIXER_KERNELS, moved)


def is_normed_over_ranks(group: AttentionGroup, tp: int) -> bool:
    """Whether queries and keys are normed over all heads, so that ranks exchange their squares."""
    return tp > 1 and isinstance(group, GqaAttention) and group.norm_over_heads


def attention_shapes(group: AttentionGroup, hidden_size: int, tp: int) -> list[Shape]:
    """Rows and columns of the products of an attention layer on one rank, the input's first.

    Keys and values of latent attention are expanded on the query and output side (absorbed):
    the same weights and FLOPs as the expansion itself.
    """
    if isinstance(group, MlaAttention):
        return _mla_shapes(group, hidden_size, tp)
    if isinstance(group, CompressedAttention):
        return _compressed_shapes(group, hidden_size, tp)
    if isinstance(group, GqaAttention):
        return _gqa_shapes(group, hidden_size, tp)
    return _recurrent_shapes(group, hidden_size, tp)


def feed_forward_shapes(group: DenseFfn | MoeFfn, hidden_size: int, tp: int) -> list[Shape]:
    """Rows and columns of the products of a feed-forward layer, router and experts left out."""
    if isinstance(group, DenseFfn):
        return _inner_shapes(group.intermediate_size / tp, hidden_size, gated=group.gated)
    shapes: list[Shape] = []
    if group.latent_size:
        shapes += [(group.latent_size, hidden_size), (hidden_size, group.latent_size)]
    shared = group.shared_experts * group.shared_intermediate_size / tp
    return shapes + (_inner_shapes(shared, hidden_size, gated=group.gated) if shared else [])


def _inner_shapes(inner: float, hidden_size: int, *, gated: bool) -> list[Shape]:
    return [(inner * (2 if gated else 1), hidden_size), (hidden_size, inner)]


def _gqa_shapes(group: GqaAttention, hidden_size: int, tp: int) -> list[Shape]:
    queries, values = (group.heads * size / tp for size in (group.head_dim, group.value_width))
    kept = kv_heads_per_chip(group, tp) * (group.head_dim + group.value_width)
    gate = values if group.output_gate else 0.0
    entry = (queries + kept + gate, hidden_size)
    return [entry, *_index_shapes(group.index, hidden_size, hidden_size), (hidden_size, values)]


def _mla_shapes(group: MlaAttention, hidden_size: int, tp: int) -> list[Shape]:
    heads = group.heads / tp
    latents = group.q_lora_rank + group.kv_lora_rank + group.qk_rope_head_dim
    query_width = group.q_lora_rank or hidden_size
    values = heads * group.v_head_dim
    gate = [(values, float(hidden_size))] if group.output_gate else []
    return [
        (latents, hidden_size),
        (heads * (group.qk_nope_head_dim + group.qk_rope_head_dim), query_width),
        *_index_shapes(group.index, hidden_size, query_width),
        (heads * group.kv_lora_rank, group.qk_nope_head_dim),
        (values, group.kv_lora_rank),
        *gate,
        (hidden_size, values),
    ]


def _compressed_shapes(group: CompressedAttention, hidden_size: int, tp: int) -> list[Shape]:
    """The compressor's projections go with the input's; each output group has a product."""
    width = group.heads * group.head_dim
    inputs = group.q_lora_rank + group.head_dim * (1 + group.pooled_projections)
    index = _index_shapes(group.index, hidden_size, group.q_lora_rank, group.pooled_projections)
    low_rank = group.output_groups * group.output_lora_rank / tp
    return [
        (inputs, hidden_size),
        (width / tp, group.q_lora_rank),
        *index,
        (low_rank, width / group.output_groups),
        (hidden_size, low_rank),
    ]


def _recurrent_shapes(group: RecurrentAttention, hidden_size: int, tp: int) -> list[Shape]:
    if isinstance(group, GdnAttention):
        values = group.value_width / tp
        entry = (group.convolved_width + 2 * group.value_heads) / tp + values
        return [(entry, hidden_size), (hidden_size, values)]
    width = group.width / tp
    if isinstance(group, MambaAttention):
        entry = (group.convolved_width + group.heads) / tp + width
        return [(entry, hidden_size), (hidden_size, width)]
    narrow = group.head_dim / tp
    gate = width if group.full_rank_gate else narrow
    entry = 3 * width + gate + narrow + group.heads / tp
    low_rank = [(width, group.head_dim)] * (1 if group.full_rank_gate else 2)
    return [(entry, hidden_size), *low_rank, (hidden_size, width)]


def _index_shapes(
    index: SparseIndex | None, hidden_size: int, query_width: int, key_projections: int = 1
) -> list[Shape]:
    if index is None:
        return []
    keys = key_projections * index.head_dim + index.heads
    return [(index.heads * index.head_dim, query_width), (keys, hidden_size)]


def _products_s(machine: Machine, shapes: list[Shape], dtype: Dtype, tokens: Floats) -> Floats:
    seconds = np.zeros_like(tokens)
    for rows, columns in shapes:
        seconds += gemm_s(machine, tokens, rows, columns, dtype)
    return seconds


def _quantisations(machine: Machine, dtype: Dtype, tp: int) -> float:
    """Launches of half a layer that quantise inputs, beside what products in `dtype` contain."""
    if not spared_us(machine, dtype):
        return 0.0
    return _QUANTISATIONS.get(machine.engine, _OTHER_QUANTISATIONS) + machine.norm_is_apart(tp)


def _small_kernels(machine: Machine, group: AttentionGroup | DenseFfn | MoeFfn, tp: int) -> int:
    """Launches; the norm is part of the all-reduce before it where the engine fuses them."""
    indexed = not isinstance(group, DenseFfn | MoeFfn | RecurrentAttention) and group.index
    apart = machine.norm_is_apart(tp)
    within = _WITHIN_OPERATORS.get(machine.engine, {}).get(group.kind, 0)
    return _SMALL_KERNELS[group.kind] - within + apart + (_INDEX_KERNELS if indexed else 0)
