"""Kernels that an engine's release chooses for a model: experts in Triton, norms apart."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from objectives.cost import StepCosts, step_costs
from objectives.cost.collectives import all_reduce_s
from objectives.cost.machine import Machine, machine_of
from objectives.cost.operators import routed_experts_s
from spaces import catalog
from spaces.plan import EngineName, Pool, Precision
from spaces.precision import Dtype, WeightsName

TOKENS = np.array([1.0, 4.0, 16.0, 64.0, 128.0, 1024.0])


def machine(
    model: str, release: str = "", chip: str = "b200", engine: EngineName = "sglang"
) -> Machine:
    return replace(machine_of(catalog.chip(chip), engine, release), model=model)


def pool_of(**layout: int) -> Pool:
    sizes = {"max_num_seqs": 64, "max_num_batched_tokens": 8192} | layout
    return Pool(role="aggregated", chip="b200", replicas=1, **sizes)


def experts_s(model: str, weights: Dtype, release: str = "", **layout: int) -> np.ndarray:
    spec = catalog.model(model)
    assert spec.moe is not None
    pool = pool_of(**layout)
    return routed_experts_s(
        machine(model, release), spec.moe, spec.hidden_size, pool, weights, TOKENS
    )


def test_triton_experts_are_near_the_kernel_that_was_timed() -> None:
    # aiconfigurator-core 0.12.0, sglang_fused_moe_triton of sglang 0.5.14 on B200: MiniMax-M2's
    # experts in fp8, cut into 4 slices, even routing, at the tokens above.
    timed_us = np.array([34.0, 54.0, 148.0, 263.0, 266.0, 312.0])
    ours_us = 1e6 * experts_s("minimax-m2", "fp8", tp=4)
    assert np.abs(np.log(ours_us / timed_us)).max() < 0.45
    assert abs(np.median(np.log(ours_us / timed_us))) < 0.25


@pytest.mark.parametrize(
    ("model", "weights", "release", "triton"),
    [
        ("qwen3-235b-a22b", "bf16", "0.5.8", True),
        ("qwen3-235b-a22b", "bf16", "0.5.14", False),
        ("qwen3-235b-a22b", "bf16", "", False),
        ("qwen3-235b-a22b", "fp8", "0.5.8", False),
        ("minimax-m2.5", "fp8", "0.5.8", True),
        ("minimax-m2.5", "fp8", "", True),
        ("minimax-m2.5", "nvfp4", "", False),
        ("deepseek-r1", "fp8", "0.5.8", False),
    ],
)
def test_releases_choose_the_kernel_of_experts(
    model: str, weights: Dtype, release: str, triton: bool
) -> None:
    chosen = machine(model, release).experts(weights)
    table = machine(model).achieved.experts.triton
    assert table is not None
    assert (chosen == table.formats.get(weights)) is triton
    other = machine(model, release, engine="vllm").experts(weights)
    assert other != table.formats.get(weights)
    # Elsewhere the kernels measured are Triton's anyway.
    assert machine(model, release, chip="h200").achieved.experts.triton is None


def test_norms_are_kernels_of_their_own_where_the_sum_does_not_hold_them() -> None:
    fused = [("deepseek-r1", "0.5.5"), ("qwen3-235b-a22b", "0.5.8"), ("qwen3.5-397b-a17b", "")]
    apart = [("qwen3-235b-a22b", "0.5.6"), ("minimax-m2.5", ""), ("qwen3.5-397b-a17b", "0.5.9")]
    assert not any(machine(model, release).norm_is_apart(8) for model, release in fused)
    assert all(machine(model, release).norm_is_apart(8) for model, release in apart)
    assert machine("deepseek-r1").norm_is_apart(1)
    assert not machine("minimax-m2.5", engine="vllm").norm_is_apart(8)
    assert not machine("minimax-m2.5", chip="mi300x").norm_is_apart(8)


def minimax_costs(over_heads: bool, tp: int, weights: WeightsName = "native") -> StepCosts:
    model = catalog.model("minimax-m2")
    (group,) = model.attention
    group = group.model_copy(update={"norm_over_heads": over_heads})
    model = model.model_copy(update={"attention": (group,)})
    precision = Precision(weights=weights)
    return step_costs(model, catalog.chip("b200"), pool_of(tp=tp), precision, "vllm")


def test_a_norm_over_all_heads_exchanges_two_sums_a_token() -> None:
    with_norm, without = minimax_costs(True, 4), minimax_costs(False, 4)
    on = machine("minimax-m2", engine="vllm")
    tokens = np.maximum(with_norm.grid, 1).astype(float)
    added = 62 * (2 * on.small_kernel_s + all_reduce_s(on, 8.0 * tokens, 4))
    np.testing.assert_allclose(with_norm.token_s[0] - without.token_s[0], added, rtol=1e-6)
    alone, plain = minimax_costs(True, 1), minimax_costs(False, 1)
    np.testing.assert_array_equal(alone.token_s, plain.token_s)
