"""Chips and models built by hand from published figures, and step costs in one call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from objectives.cost import StepCosts, step_costs
from spaces.chip import ChipSpec, Fact
from spaces.model import (
    DenseFfn,
    GqaAttention,
    KdaAttention,
    MlaAttention,
    ModelSpec,
    MoeFfn,
    WeightPrecision,
)
from spaces.plan import EngineName, Pool, Precision

Costs = Callable[..., StepCosts]

# bf16, fp8, fp4 TFLOPS; HBM GB and GB/s; chips of a node and of a scale-up domain; GB/s of the
# scale-up link, the network card and the host link. Vendors' data sheets.
_CHIPS = {
    "h100": (989, 1979, None, 80, 3350, 8, 8, 450, 50, 63),
    "h200": (989, 1979, None, 141, 4800, 8, 8, 450, 50, 63),
    "b200": (2250, 4500, 9000, 180, 8000, 8, 8, 900, 50, 63),
    "b300": (2250, 4500, 13500, 268, 8000, 8, 8, 900, 100, 63),
    "gb200": (2500, 5000, 10000, 186, 8000, 4, 72, 900, 50, 225),
    "gb300": (2500, 5000, 15000, 278, 8000, 4, 72, 900, 100, 225),
    "mi355x": (2516, 5033, 10066, 288, 8000, 8, 8, 538, 50, 63),
}


def fact(value: float) -> Fact:
    return Fact(value=value, source="data sheet")


def _chip(name: str) -> ChipSpec:
    bf16, fp8, fp4, hbm, speed, node, domain, link, card, host = _CHIPS[name]
    return ChipSpec(
        name=name,
        title=name,
        vendor="any",
        checked="2026-11-30",
        efficiency=name,
        bf16_tflops=fact(bf16),
        fp8_tflops=fact(fp8) if fp8 else None,
        fp4_tflops=fact(fp4) if fp4 else None,
        hbm_gb=fact(hbm),
        hbm_gb_per_s=fact(speed),
        chips_per_node=fact(node),
        scaleup_chips=fact(domain),
        scaleup_gb_per_s=fact(link),
        scaleout_gb_per_s=fact(card),
        host_link_gb_per_s=fact(host),
        host_dram_gb=fact(250),
        tdp_w=fact(1000),
    )


def _model(
    name: str, hidden: int, vocab: int, native: WeightPrecision, **layers: Any
) -> ModelSpec:
    return ModelSpec(
        name=name,
        source="config.json",
        hidden_size=hidden,
        vocab_size=vocab,
        max_context_tokens=131072,
        native_weights=native,
        **layers,
    )


def _mla(layers: int, heads: int) -> MlaAttention:
    return MlaAttention(
        layers=layers,
        heads=heads,
        q_lora_rank=1536,
        kv_lora_rank=512,
        qk_nope_head_dim=128,
        qk_rope_head_dim=64,
        v_head_dim=128,
    )


def _models() -> list[ModelSpec]:
    bf16 = WeightPrecision(routed_experts="bf16", linear="bf16")
    fp8 = WeightPrecision(routed_experts="fp8", linear="fp8")
    mxfp4 = WeightPrecision(routed_experts="mxfp4", linear="bf16")
    return [
        _model(
            "deepseek",
            7168,
            129280,
            fp8,
            attention=(_mla(61, 128),),
            ffn=(
                DenseFfn(layers=3, intermediate_size=18432),
                MoeFfn(
                    layers=58,
                    routed_experts=256,
                    top_k=8,
                    expert_intermediate_size=2048,
                    shared_experts=1,
                    shared_intermediate_size=2048,
                ),
            ),
        ),
        _model(
            "llama",
            8192,
            128256,
            bf16,
            attention=(GqaAttention(layers=80, heads=64, kv_heads=8, head_dim=128),),
            ffn=(DenseFfn(layers=80, intermediate_size=28672),),
        ),
        _model(
            "qwen",
            5120,
            151936,
            bf16,
            attention=(GqaAttention(layers=64, heads=64, kv_heads=8, head_dim=128),),
            ffn=(DenseFfn(layers=64, intermediate_size=25600),),
        ),
        _model(
            "gpt-oss",
            2880,
            201088,
            mxfp4,
            attention=(
                GqaAttention(
                    layers=18, heads=64, kv_heads=8, head_dim=64, window_tokens=128, bias=True
                ),
                GqaAttention(layers=18, heads=64, kv_heads=8, head_dim=64, bias=True),
            ),
            ffn=(
                MoeFfn(
                    layers=36,
                    routed_experts=128,
                    top_k=4,
                    expert_intermediate_size=2880,
                    bias=True,
                ),
            ),
        ),
        _model(
            "linear",
            4096,
            129280,
            bf16,
            attention=(
                KdaAttention(layers=3, heads=32, head_dim=128, conv_kernel=4),
                _mla(1, 32),
            ),
            ffn=(
                MoeFfn(
                    layers=4,
                    routed_experts=64,
                    top_k=8,
                    expert_intermediate_size=1024,
                    latent_size=2048,
                ),
            ),
        ),
    ]


CHIPS = {name: _chip(name) for name in _CHIPS}
MODELS = {model.name: model for model in _models()}


@pytest.fixture(scope="session")
def chips() -> dict[str, ChipSpec]:
    """Chips by the name of their efficiency table."""
    return CHIPS


@pytest.fixture(scope="session")
def models() -> dict[str, ModelSpec]:
    """DeepSeek-V3, Llama-3.3-70B, Qwen3-32B, gpt-oss-120b, and a small linear-attention model."""
    return MODELS


@pytest.fixture(scope="session")
def costs() -> Costs:
    """Step costs of a model on a chip; other arguments go to the pool."""

    def build(
        model: str | ModelSpec,
        chip: str | ChipSpec,
        *,
        engine: EngineName = "vllm",
        release: str = "",
        precision: Precision | None = None,
        **layout: int,
    ) -> StepCosts:
        spec = MODELS[model] if isinstance(model, str) else model
        card = CHIPS[chip] if isinstance(chip, str) else chip
        pool = Pool(role="aggregated", chip=card.name, **layout)
        return step_costs(spec, card, pool, precision or Precision(), engine, release=release)

    return build
