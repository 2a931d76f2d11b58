"""Attention's look at the context as measured tables have it."""

from __future__ import annotations

from objectives.cost.machine import SECONDS_PER_US, Machine
from objectives.cost.silicon.attention import (
    LATENT,
    AttentionLaw,
    decode_law,
    latent_decode_law,
    latent_prefill_law,
    prefill_law,
)
from spaces.model import AttentionGroup, GqaAttention, MlaAttention
from spaces.precision import KvDtype
from spaces.sharding import kv_heads_per_chip


def measured_context(
    machine: Machine, group: AttentionGroup, tp: int, kv: KvDtype, queries: int
) -> dict[str, float]:
    """Coefficients of `ContextSeconds` that the engine's tables tell, by name.

    Contexts of a batch differ in length, and clocks are slower under load, as for fitted kernels.
    What a chunk reads of its cached context was not measured and stays fitted.
    """
    window = f", window {group.window_tokens}" if group.window_tokens else ""
    shape = f"{group.kind}{window}, tp {tp}, {kv} cache"
    decode = _decode(machine, group, tp, kv) if queries == 1 else None
    prefill = _prefill(machine, group, tp, kv)
    missing = "its geometry was not measured"
    drafts = "verifying drafts was not measured" if queries > 1 else missing
    for operator, law, reason in (
        ("decode attention", decode, drafts),
        ("prefill attention", prefill, missing),
    ):
        machine.note(operator, shape, None if law is None else law.origin, reason)
    windowed = bool(group.window_tokens)
    return _decode_coefficients(machine, decode, windowed) | _prefill_coefficients(
        machine, prefill, windowed
    )


def _decode(machine: Machine, group: AttentionGroup, tp: int, kv: KvDtype) -> AttentionLaw | None:
    chip, engine = machine.chip.name, machine.engine
    if isinstance(group, GqaAttention) and _is_plain(group, tp):
        return decode_law(chip=chip, engine=engine, kv=kv, **_geometry(group, tp))
    if isinstance(group, MlaAttention) and _is_measured_latent(group, tp):
        return latent_decode_law(chip=chip, engine=engine, heads=group.heads // tp, kv=kv)
    return None


def _prefill(machine: Machine, group: AttentionGroup, tp: int, kv: KvDtype) -> AttentionLaw | None:
    chip, engine = machine.chip.name, machine.engine
    if isinstance(group, GqaAttention) and _is_plain(group, tp):
        return prefill_law(chip=chip, engine=engine, kv=kv, **_geometry(group, tp))
    if isinstance(group, MlaAttention) and _is_measured_latent(group, tp):
        return latent_prefill_law(chip=chip, engine=engine, heads=group.heads // tp, kv=kv)
    return None


def _is_plain(group: GqaAttention, tp: int) -> bool:
    """Values as wide as keys, no selection of tokens, and heads that divide over the ranks."""
    plain = not group.top_k_tokens and group.value_width == group.head_dim
    return plain and group.heads % tp == 0


def _is_measured_latent(group: MlaAttention, tp: int) -> bool:
    alike = all(getattr(group, name) == size for name, size in LATENT.items())
    return alike and not group.top_k_tokens and group.heads % tp == 0


def _geometry(group: GqaAttention, tp: int) -> dict[str, int]:
    return {
        "heads": group.heads // tp,
        "kv_heads": kv_heads_per_chip(group, tp),
        "head_dim": group.head_dim,
        "window": group.window_tokens,
    }


def _decode_coefficients(
    machine: Machine, law: AttentionLaw | None, windowed: bool
) -> dict[str, float]:
    if law is None:
        return {}
    token = law.unit_s / machine.overheads.sustained.kv_read
    return {
        "decode_base": machine.launch_s(law.call_s / SECONDS_PER_US),
        "decode_request": law.item_s,
        "decode_token": 0.0 if windowed else token,
        "decode_window_token": token if windowed else 0.0,
    }


def _prefill_coefficients(
    machine: Machine, law: AttentionLaw | None, windowed: bool
) -> dict[str, float]:
    if law is None:
        return {}
    pair = law.unit_s / machine.overheads.sustained.compute
    return {
        "prefill_base": machine.launch_s(law.call_s / SECONDS_PER_US),
        "chunk_token": law.item_s,
        "pair": 0.0 if windowed else pair,
        "window_pair": pair if windowed else 0.0,
    }
