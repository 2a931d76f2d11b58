"""Rooflines of single operators."""

from __future__ import annotations

import numpy as np
import pytest

from objectives.cost.layers import (
    attention_layer_s,
    attention_shapes,
    feed_forward_layer_s,
    feed_forward_shapes,
)
from objectives.cost.machine import machine_of
from objectives.cost.operators import gemm_s, routed_experts_s
from spaces.chip import ChipSpec
from spaces.model import DenseFfn, MlaAttention, ModelSpec, MoeFfn
from spaces.plan import EngineName, Pool
from spaces.precision import Dtype
from spaces.sharding import attention_parameters_per_chip, feed_forward_parameters_per_chip

TOKENS = np.array([1.0, 16.0, 64.0, 256.0, 1024.0, 8192.0])


@pytest.mark.parametrize("chip", ["h100", "h200", "b200", "b300", "gb200", "gb300", "mi355x"])
@pytest.mark.parametrize("dtype", ["bf16", "fp8", "nvfp4", "mxfp4", "int4"])
def test_a_product_is_never_faster_than_its_roofline(
    chips: dict[str, ChipSpec], chip: str, dtype: Dtype
) -> None:
    spec = chips[chip]
    seconds = gemm_s(machine_of(spec, "vllm"), TOKENS, 8192, 8192, dtype)
    bits = {"bf16": 16, "fp8": 8, "nvfp4": 4, "mxfp4": 4, "int4": 4}[dtype]
    reading = 8192 * 8192 * bits / 8 / spec.hbm_bytes_per_s
    multiplying = 2 * TOKENS * 8192 * 8192 / spec.peak_flops(spec.compute_dtype(dtype))
    bound = np.maximum(reading, multiplying)
    assert (seconds > bound).all()
    assert (seconds < 5 * bound + 15e-6).all()


def test_one_token_reads_the_weights_and_many_tokens_multiply(chips: dict[str, ChipSpec]) -> None:
    machine = machine_of(chips["h100"], "vllm")
    small = gemm_s(machine, np.array([1.0, 2.0]), 16384, 16384, "bf16")
    assert small[1] == pytest.approx(small[0], rel=0.01)
    assert small[0] == pytest.approx(2 * 16384**2 / (3350e9 * 0.869), rel=0.05)
    large = gemm_s(machine, np.array([4096.0, 8192.0]), 16384, 16384, "bf16")
    assert large[1] == pytest.approx(2 * large[0], rel=0.02)


def test_four_bit_weights_are_multiplied_in_bf16_where_the_chip_has_no_fp4(
    chips: dict[str, ChipSpec],
) -> None:
    many = np.array([8192.0])
    hopper = machine_of(chips["h200"], "vllm")
    whole = gemm_s(hopper, many, 8192, 8192, "bf16")
    packed = gemm_s(hopper, many, 8192, 8192, "nvfp4")
    assert packed == pytest.approx(whole, rel=0.01)
    one = np.array([1.0])
    assert gemm_s(hopper, one, 16384, 16384, "nvfp4") < 0.4 * gemm_s(
        hopper, one, 16384, 16384, "bf16"
    )


def _experts(chip: ChipSpec, moe: MoeFfn, tokens: list[float], **layout: int) -> list[float]:
    pool = Pool(role="aggregated", chip=chip.name, **layout)
    machine = machine_of(chip, "sglang")
    found = routed_experts_s(machine, moe, 7168, pool, "fp8", np.array(tokens))
    return [float(seconds) for seconds in found]


def test_expert_time_follows_distinct_experts_then_tokens(
    models: dict[str, ModelSpec], chips: dict[str, ChipSpec]
) -> None:
    moe = models["deepseek"].moe
    assert moe is not None
    one, four, sixteen, all_of_them = _experts(chips["h200"], moe, [1, 4, 16, 200], tp=8)
    per_expert = (four - one) / (moe.distinct_experts(4) - moe.distinct_experts(1))
    reading = moe.parameters_per_expert(7168) / 8 / chips["h200"].hbm_bytes_per_s
    assert reading < per_expert < 1.3 * reading
    expected = one + per_expert * (moe.distinct_experts(16) - 8)
    assert sixteen == pytest.approx(expected, rel=0.02)
    reading_all = one + per_expert * (moe.distinct_experts(200) - 8)
    assert reading_all < all_of_them < 1.2 * reading_all  # rows add to what is read
    few, many = _experts(chips["h200"], moe, [32768, 65536], tp=8)
    assert many == pytest.approx(2 * few, rel=0.1)


def test_spreading_experts_reads_less_but_not_evenly(
    models: dict[str, ModelSpec], chips: dict[str, ChipSpec]
) -> None:
    moe = models["deepseek"].moe
    assert moe is not None
    (cut,) = _experts(chips["h200"], moe, [16.0], tp=8, ep=1)
    (spread,) = _experts(chips["h200"], moe, [16.0], tp=8, ep=8)
    assert cut < spread < 1.5 * cut
    (wide,) = _experts(chips["h200"], moe, [16.0], tp=1, dp=16, ep=16)
    assert wide < spread


@pytest.mark.parametrize("name", ["deepseek", "llama", "gpt-oss", "linear"])
@pytest.mark.parametrize("tp", [1, 4, 16])
def test_products_cover_the_weights_of_a_layer(
    models: dict[str, ModelSpec], name: str, tp: int
) -> None:
    hidden = models[name].hidden_size
    for attention in models[name].attention:
        covered = sum(rows * columns for rows, columns in attention_shapes(attention, hidden, tp))
        weights = attention_parameters_per_chip(attention, hidden, tp)
        assert covered == pytest.approx(weights, rel=0.002)  # biases and convolutions apart
    for ffn in models[name].ffn:
        covered = sum(rows * columns for rows, columns in feed_forward_shapes(ffn, hidden, tp))
        router = 0 if isinstance(ffn, DenseFfn) else ffn.routed_experts * hidden
        assert covered + router == pytest.approx(
            feed_forward_parameters_per_chip(ffn, hidden, tp), rel=1e-9
        )


def test_absorbed_products_are_the_expansion(models: dict[str, ModelSpec]) -> None:
    mla = models["deepseek"].attention[0]
    assert isinstance(mla, MlaAttention)
    absorbed = attention_shapes(mla, 7168, 1)[2:4]
    assert sum(rows * columns for rows, columns in absorbed) == 512 * 128 * (128 + 128)


def test_tensorrt_llm_counts_no_launch_twice_that_its_operators_hold(
    models: dict[str, ModelSpec], chips: dict[str, ChipSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One kernel prepares keys and cache; top-k and sum are in the benchmark of the experts."""
    attention, ffn = models["gpt-oss"].attention[0], models["gpt-oss"].ffn[0]

    def seconds(engine: EngineName) -> tuple[float, float]:
        machine, tokens = machine_of(chips["b200"], engine), np.ones(1)
        return (
            float(attention_layer_s(machine, attention, 2880, 4, "bf16", tokens)[0]),
            float(feed_forward_layer_s(machine, ffn, 2880, 4, "bf16", tokens)[0]),
        )

    held, others = seconds("trtllm"), seconds("vllm")
    monkeypatch.setattr("objectives.cost.layers._WITHIN_OPERATORS", {})
    each = machine_of(chips["b200"], "trtllm").small_kernel_s
    counted = seconds("trtllm")
    assert counted[0] - held[0] == pytest.approx(each)
    assert counted[1] - held[1] == pytest.approx(2 * each)
    assert seconds("vllm") == others
