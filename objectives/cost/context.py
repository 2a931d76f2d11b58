"""Seconds of attention's look at the context, per layer on one chip, as affine coefficients."""

from __future__ import annotations

from dataclasses import dataclass, fields

from objectives.cost.chip_efficiency import DecodeAttentionRow
from objectives.cost.fitted_attention import decode_law, prefill_pair_s
from objectives.cost.machine import SECONDS_PER_US, Machine
from spaces.model import GqaAttention, KdaAttention, MlaAttention
from spaces.precision import BYTES_PER_KV_ELEMENT, KvDtype
from spaces.sharding import AttentionGroup, kv_elements_per_chip

# The KV size at which the middle share of bandwidth was measured: 32 to 128 MB, geometric mean.
_MIDDLE_BYTES = 64e6


@dataclass(frozen=True, slots=True)
class ContextSeconds:
    """Seconds per layer call, per request, and per context token; per chunk, pair and KV token."""

    decode_base: float = 0.0
    decode_request: float = 0.0
    decode_token: float = 0.0
    prefill_base: float = 0.0
    pair: float = 0.0
    read: float = 0.0

    def plus(self, one: ContextSeconds, layers: int) -> ContextSeconds:
        """These coefficients with `layers` times those of `one` added."""
        return ContextSeconds(
            *(getattr(self, f.name) + layers * getattr(one, f.name) for f in fields(self))
        )


def context_seconds(
    machine: Machine, group: AttentionGroup, tp: int, kv: KvDtype
) -> ContextSeconds:
    """Coefficients of one layer of a kind."""
    if isinstance(group, KdaAttention):
        return _recurrent(machine, group, tp)
    if isinstance(group, MlaAttention):
        return _latent(machine, group, tp, kv)
    return _grouped(machine, group, tp, kv)


def decode_launch_us(row: DecodeAttentionRow, hbm_bytes_per_s: float) -> float:
    """Fixed time that makes an affine law meet small and middle sizes about equally well.

    Half way between the measured floor and the time that the middle share of bandwidth leaves
    over after reading at the large share.
    """
    whole = _MIDDLE_BYTES / hbm_bytes_per_s
    left_over = whole / row.middle - whole / row.large
    return (row.latency_us + max(row.latency_us, left_over / SECONDS_PER_US)) / 2


def _grouped(machine: Machine, group: GqaAttention, tp: int, kv: KvDtype) -> ContextSeconds:
    row = machine.decode_attention(kv)
    bytes_per_token = kv_elements_per_chip(group, tp) * BYTES_PER_KV_ELEMENT[kv]
    read = bytes_per_token / (machine.kv_bytes_per_s * row.large)
    launch_us = decode_launch_us(row, machine.chip.hbm_bytes_per_s)
    call = machine.launch_s(row.latency_us if group.window_tokens else launch_us)
    pair = group.flops_per_pair / tp / machine.prefill_attention_flops(kv)
    if law := decode_law(machine, group, tp, kv):
        call = law[0] + machine.kernel_gap_s
        read = law[1] / machine.overheads.sustained.kv_read
    return ContextSeconds(
        decode_base=call,
        decode_token=read,
        pair=prefill_pair_s(machine, group, tp, kv) or pair,
        read=0.0 if group.window_tokens else read,
    )


def _latent(machine: Machine, group: MlaAttention, tp: int, kv: KvDtype) -> ContextSeconds:
    """Decode reads the latent or multiplies by it, whichever takes longer.

    A chunk has the keys and values of its cached tokens expanded again.
    """
    row = machine.mla_decode(kv)
    bytes_per_token = kv_elements_per_chip(group, tp) * BYTES_PER_KV_ELEMENT[kv]
    read = bytes_per_token / (machine.kv_bytes_per_s * row.memory)
    multiply = group.absorbed_flops_per_pair / tp / (machine.chip.peak_flops("bf16") * row.compute)
    expanded = group.kv_lora_rank * (group.qk_nope_head_dim + group.v_head_dim)
    large = max(machine.gemm("bf16").compute.values())
    expand = 2 * expanded * group.heads / tp / (machine.sustained_flops("bf16") * large)
    return ContextSeconds(
        decode_base=machine.launch_s(row.latency_us),
        decode_token=max(read, multiply),
        pair=group.flops_per_pair / tp / machine.prefill_attention_flops(kv),
        read=max(read, expand),
    )


def _recurrent(machine: Machine, group: KdaAttention, tp: int) -> ContextSeconds:
    """The state is read and written: once a step for a decoding request, once for a chunk."""
    row = machine.achieved.linear_attention
    state = 2 * group.state_bytes / tp / (machine.chip.hbm_bytes_per_s * row.memory)
    launch = machine.launch_s(row.latency_us)
    return ContextSeconds(decode_base=launch, decode_request=state, prefill_base=state)
