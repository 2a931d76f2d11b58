"""Seconds of attention's look at the context, per layer on one chip, as affine coefficients."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from objectives.cost.chip_efficiency import DecodeAttentionRow
from objectives.cost.machine import SECONDS_PER_US, Machine
from objectives.cost.measured_context import measured_context
from spaces.model import (
    AttentionGroup,
    CompressedAttention,
    GqaAttention,
    MlaAttention,
    RecurrentAttention,
    SparseIndex,
)
from spaces.precision import Dtype, KvDtype
from spaces.sharding import kv_bytes_per_chip

# The KV size at which the middle share of bandwidth was measured: 32 to 128 MB, geometric mean.
_MIDDLE_BYTES = 64e6


@dataclass(frozen=True, slots=True)
class ContextSeconds:
    """Seconds of one layer: in decode per call, request and context token; in prefill per chunk,
    new token, query-key pair and KV token.

    Those of a `window` count tokens and pairs within the model's read limit only: the sliding
    window, or the length of context that fills a sparse selection.
    """

    decode_base: float = 0.0
    decode_request: float = 0.0
    decode_token: float = 0.0
    decode_window_token: float = 0.0
    prefill_base: float = 0.0
    chunk_token: float = 0.0
    pair: float = 0.0
    window_pair: float = 0.0
    read: float = 0.0

    def plus(self, one: ContextSeconds, layers: int) -> ContextSeconds:
        """These coefficients with `layers` times those of `one` added."""
        return ContextSeconds(
            *(getattr(self, f.name) + layers * getattr(one, f.name) for f in fields(self))
        )

    def in_decode(self) -> ContextSeconds:
        """The coefficients of decoding requests alone."""
        kept = {f.name: getattr(self, f.name) for f in fields(self) if f.name.startswith("decode")}
        return ContextSeconds(**kept)


def context_seconds(
    machine: Machine, group: AttentionGroup, tp: int, kv: KvDtype, queries: int = 1
) -> ContextSeconds:
    """Coefficients of one layer of a kind.

    A decoding request has `queries` tokens in a step, more than one where drafts are verified: its
    KV is read once for all of them and multiplied with each. On a measured machine coefficients
    that the engine's tables tell replace the fitted ones (`measured_context`).
    """
    fitted = _fitted_seconds(machine, group, tp, kv, queries)
    if not machine.measured:
        return fitted
    return replace(fitted, **measured_context(machine, group, tp, kv, queries))


def _fitted_seconds(
    machine: Machine, group: AttentionGroup, tp: int, kv: KvDtype, queries: int
) -> ContextSeconds:
    if isinstance(group, RecurrentAttention):
        return _recurrent(machine, group, tp, queries)
    if isinstance(group, CompressedAttention):
        return _compressed(machine, group, tp, kv, queries)
    if isinstance(group, GqaAttention):
        return _grouped(machine, group, tp, kv, queries)
    return (
        _sparse_latent(machine, group, tp, kv, queries)
        if group.top_k_tokens
        else _latent(machine, group, tp, kv, queries)
    )


def decode_launch_us(row: DecodeAttentionRow, hbm_bytes_per_s: float) -> float:
    """Fixed time that makes an affine law meet small and middle sizes about equally well.

    Half way between the measured floor and the time that the middle share of bandwidth leaves
    over after reading at the large share.
    """
    whole = _MIDDLE_BYTES / hbm_bytes_per_s
    left_over = whole / row.middle - whole / row.large
    return (row.latency_us + max(row.latency_us, left_over / SECONDS_PER_US)) / 2


def _grouped(
    machine: Machine, group: GqaAttention, tp: int, kv: KvDtype, queries: int
) -> ContextSeconds:
    """Reads the KV heads on a chip (arXiv 2305.13245), 4 h d FLOPs a pair (arXiv 2307.08691).

    What is read in prefill of a window or a selection is left out: it is multiplied longer.
    """
    row, factors = machine.decode_attention(kv), machine.factors("decode_attention", kv)
    keys = group.index.key_bytes if group.index else 0
    bytes_per_token = kv_bytes_per_chip(group, tp, kv) - keys
    read = factors.move * bytes_per_token / (machine.kv_bytes_per_s * row.large)
    slower = machine.factors("prefill_attention", kv).multiply
    pair = slower * group.flops_per_pair / tp / machine.prefill_attention_flops(kv)
    launch_us = decode_launch_us(row, machine.chip.hbm_bytes_per_s)
    fixed_us = row.latency_us if group.read_limit_tokens else launch_us
    call = machine.launch_s(factors.fixed * fixed_us)
    if group.read_limit_tokens:
        limited = ContextSeconds(decode_base=call, decode_window_token=read, window_pair=pair)
        return limited.plus(_scoring(machine, group.index, queries), 1)
    return ContextSeconds(decode_base=call, decode_token=read, pair=pair, read=read)


def _latent(
    machine: Machine, group: MlaAttention, tp: int, kv: KvDtype, queries: int
) -> ContextSeconds:
    """Decode reads the latent or multiplies by it (absorbed, arXiv 2405.04434, section 2.1).

    A chunk has the keys and values of its cached tokens expanded again.
    """
    row, factors = machine.mla_decode(kv), machine.factors("latent_decode", kv)
    read, multiply = _latent_token_s(machine, group, tp, kv)
    read, multiply = factors.move * read, factors.multiply * multiply
    slower = machine.factors("latent_prefill", kv).multiply
    expanded = group.kv_lora_rank * (group.qk_nope_head_dim + group.v_head_dim)
    large = max(machine.gemm("bf16").compute.values())
    expand = 2 * expanded * group.heads / tp / (machine.sustained_flops("bf16") * large)
    return ContextSeconds(
        decode_base=machine.launch_s(factors.fixed * row.latency_us),
        decode_token=max(read, queries * multiply),
        pair=slower * group.flops_per_pair / tp / machine.prefill_attention_flops(kv),
        read=max(read, expand),
    )


def _sparse_latent(
    machine: Machine, group: MlaAttention, tp: int, kv: KvDtype, queries: int
) -> ContextSeconds:
    """The selected latents alone are read or multiplied by, absorbed in prefill too.

    Nothing is expanded: every query has latents of its own (arXiv 2512.02556, appendix A), which
    in decode are read for each of its tokens.
    """
    read, multiply = _latent_token_s(machine, group, tp, kv)
    flops = _padded(machine, group.absorbed_flops_per_pair, group.heads, tp)
    attend = ContextSeconds(
        decode_base=machine.launch_s(machine.mla_decode(kv).latency_us),
        decode_window_token=queries * max(read, multiply),
        window_pair=flops / machine.prefill_attention_flops(kv),
    )
    return attend.plus(_scoring(machine, group.index, queries), 1)


def _padded(machine: Machine, flops: int, heads: int, tp: int) -> float:
    """FLOPs of a pair on one rank in prefill, whose kernels fill up the rank's query heads."""
    return flops / heads * max(heads / tp, machine.achieved.sparse_attention.padded_heads)


def _latent_token_s(
    machine: Machine, group: MlaAttention, tp: int, kv: KvDtype
) -> tuple[float, float]:
    """Seconds of reading a cached latent in decode, and of multiplying by it."""
    row = machine.mla_decode(kv)
    keys = group.index.key_bytes if group.index else 0
    read = (kv_bytes_per_chip(group, tp, kv) - keys) / (machine.kv_bytes_per_s * row.memory)
    flops = machine.chip.peak_flops("bf16") * row.compute
    return read, group.absorbed_flops_per_pair / tp / flops


def _compressed(
    machine: Machine, group: CompressedAttention, tp: int, kv: KvDtype, queries: int
) -> ContextSeconds:
    """Entries are read and multiplied like latents; a context token is one in `ratio` entries.

    Beside them a decoding request reads its window, and a new token multiplies with it, full.
    """
    row = machine.mla_decode(kv)
    read = group.entry_bytes(kv) / (machine.kv_bytes_per_s * row.memory)
    decode_flops = machine.chip.peak_flops("bf16") * row.compute
    multiply = group.flops_per_pair / tp / decode_flops
    entry = max(read, queries * multiply)
    flops = _padded(machine, group.flops_per_pair, group.heads, tp)
    pair = flops / machine.prefill_attention_flops(kv)
    total = ContextSeconds(
        decode_base=machine.launch_s(row.latency_us),
        decode_request=group.local_tokens * entry,
        chunk_token=group.local_tokens * pair,
    )
    if not group.ratio:
        return total
    token, pair = entry / group.ratio, pair / group.ratio
    if group.top_k_entries:
        selected = queries * max(read, multiply) / group.ratio  # each query has entries of its own
        attend = ContextSeconds(decode_window_token=selected, window_pair=pair)
    else:
        attend = ContextSeconds(decode_token=token, pair=pair, read=read / group.ratio)
    return total.plus(attend, 1).plus(_scoring(machine, group.index, queries, group.ratio), 1)


def _scoring(
    machine: Machine, index: SparseIndex | None, queries: int, ratio: int = 1
) -> ContextSeconds:
    """An indexer's look at every cached key (one in `ratio` tokens): scores and their top-k.

    Keys are multiplied in fp8 where they are stored so and the chip can, and read at the bandwidth
    of moving activations. In a small batch the top-k of one long context takes longer than this.
    """
    if index is None:
        return ContextSeconds()
    dtype: Dtype = "fp8" if index.key_bytes < 2 * index.head_dim else "bf16"
    achieved = machine.achieved.sparse_attention
    multiply = index.flops_per_pair / (machine.sustained_flops(dtype) * achieved.index_compute)
    scores = achieved.score_bytes / machine.stream_bytes_per_s
    read = index.key_bytes / machine.stream_bytes_per_s
    return ContextSeconds(
        decode_base=machine.launch_s(machine.gemm(dtype).latency_us)
        + machine.launch_s(achieved.top_k_us),
        decode_token=(max(read, queries * multiply) + queries * scores) / ratio,
        pair=(multiply + scores) / ratio,
        read=read / ratio,
    )


def _recurrent(
    machine: Machine, group: RecurrentAttention, tp: int, queries: int
) -> ContextSeconds:
    """The state is read and written: once a step for a decoding request, once for a chunk.

    Recurrences of Mamba-2 (arXiv 2405.21060), GDN (2412.06464) and KDA (2510.26692).

    Verifying drafts writes the state after each of them, to go on from the last one accepted. The
    new tokens of a chunk go through the chunked recurrence.
    """
    row = machine.achieved.linear_attention
    state = 2 * group.state_bytes / tp / (machine.chip.hbm_bytes_per_s * row.memory)
    return ContextSeconds(
        decode_base=machine.launch_s(row.latency_us),
        decode_request=state * (1 + queries) / 2,
        prefill_base=state,
        chunk_token=group.state_flops_per_token / tp / machine.recurrence_flops,
    )
