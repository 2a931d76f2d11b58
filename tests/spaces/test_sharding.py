"""A model over the chips of one replica: what is split, what is repeated, and that sums agree."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spaces import catalog
from spaces.model import GqaAttention, MlaAttention
from spaces.plan import Pool, Precision
from spaces.sharding import (
    attention_parameters_per_chip,
    embedding_bytes_per_chip,
    expert_bytes_per_chip,
    fixed_bytes_per_request_per_chip,
    fullest_stage_share,
    kv_bytes_per_token_per_chip,
    kv_heads_per_chip,
    linear_bytes_per_chip,
    stage_layers,
)

BF16 = Precision(weights="bf16")


def pool(*, tp: int = 1, pp: int = 1, dp: int = 1, ep: int = 1) -> Pool:
    return Pool(role="aggregated", chip="h200", tp=tp, pp=pp, dp=dp, ep=ep)


@given(st.integers(1, 200), st.integers(1, 32))
def test_stages_hold_all_layers_and_differ_by_one_at_most(layers: int, stages: int) -> None:
    held = stage_layers(layers, stages)
    assert len(held) == stages
    assert sum(held) == layers
    assert max(held) - min(held) <= 1
    assert held == sorted(held, reverse=True)


def test_the_fullest_stage_sets_the_share() -> None:
    assert fullest_stage_share(catalog.model("deepseek-v3"), pool(pp=4)) == 16 / 61


@pytest.mark.parametrize("tp", [1, 2, 4, 8, 16, 64])
def test_latent_kv_is_not_split_by_tensor_parallelism(tp: int) -> None:
    model = catalog.model("deepseek-v3")
    assert kv_bytes_per_token_per_chip(model, pool(tp=tp), "bf16") == 70_272


@pytest.mark.parametrize(
    ("tp", "expected"), [(1, 327_680), (2, 163_840), (8, 40_960), (16, 40_960), (64, 40_960)]
)
def test_grouped_kv_is_split_down_to_one_head_and_no_further(tp: int, expected: int) -> None:
    model = catalog.model("llama-3.3-70b")
    assert kv_bytes_per_token_per_chip(model, pool(tp=tp), "bf16") == expected


def test_kv_heads_that_do_not_divide_are_rounded_up() -> None:
    group = GqaAttention(layers=1, heads=12, kv_heads=6, head_dim=4)
    assert [kv_heads_per_chip(group, tp) for tp in (1, 2, 4, 6, 12)] == [6, 3, 2, 1, 1]


def test_attention_data_parallelism_does_not_change_what_a_token_costs_its_rank() -> None:
    model = catalog.model("qwen3-235b-a22b")
    one, many = (kv_bytes_per_token_per_chip(model, pool(tp=4, dp=dp), "fp8") for dp in (1, 8))
    assert one == many == 96_256 / 4


def test_stages_share_the_kv_cache_by_their_layers() -> None:
    model = catalog.model("llama-3.3-70b")
    assert kv_bytes_per_token_per_chip(model, pool(pp=4), "bf16") == 327_680 / 4


def test_windowed_and_whole_layers_are_asked_for_apart() -> None:
    model = catalog.model("gpt-oss-120b")
    for windowed in (False, True):
        on_chip = kv_bytes_per_token_per_chip(model, pool(tp=2), "bf16", windowed=windowed)
        assert on_chip == 36_864 / 2
    assert (
        kv_bytes_per_token_per_chip(catalog.model("qwen3-32b"), pool(), "bf16", windowed=True) == 0
    )


def test_a_recurrent_state_is_split_by_heads_and_stages() -> None:
    model = catalog.model("kimi-k3")
    assert fixed_bytes_per_request_per_chip(model, pool(), "bf16") == 449_372_160
    assert fixed_bytes_per_request_per_chip(model, pool(tp=8), "fp8") == 449_372_160 / 8
    assert fixed_bytes_per_request_per_chip(model, pool(pp=3), "fp8") == pytest.approx(
        449_372_160 / 3
    )


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
@pytest.mark.parametrize("name", ["llama-3.1-8b", "llama-3.3-70b", "llama-3.1-405b", "qwen3-32b"])
def test_shares_of_a_dense_model_sum_to_the_whole(name: str, tp: int) -> None:
    model = catalog.model(name)
    ranks = pool(tp=tp)
    shares = linear_bytes_per_chip(model, ranks, BF16) + embedding_bytes_per_chip(
        model, ranks, BF16
    )
    assert shares * tp == pytest.approx(2 * model.total_parameters, rel=1e-12)


@pytest.mark.parametrize(
    ("tp", "dp", "ep"), [(1, 1, 1), (8, 1, 1), (8, 1, 8), (1, 8, 8), (2, 4, 4)]
)
@pytest.mark.parametrize("name", ["deepseek-v3", "gpt-oss-120b", "kimi-k3"])
def test_shares_of_the_routed_experts_sum_to_the_whole(
    name: str, tp: int, dp: int, ep: int
) -> None:
    model = catalog.model(name)
    share = expert_bytes_per_chip(model, pool(tp=tp, dp=dp, ep=ep), BF16)
    assert share * tp * dp == pytest.approx(2 * model.routed_parameters, rel=1e-12)


@pytest.mark.parametrize("dp", [1, 2, 8])
def test_attention_and_dense_layers_are_repeated_on_each_data_parallel_rank(dp: int) -> None:
    model = catalog.model("deepseek-v3")
    alone = linear_bytes_per_chip(model, pool(), BF16)
    assert alone == 2 * model.linear_parameters
    assert linear_bytes_per_chip(model, pool(dp=dp), BF16) == alone


def test_kv_projections_are_repeated_beyond_the_kv_heads() -> None:
    group = GqaAttention(layers=1, heads=8, kv_heads=2, head_dim=4)
    q_and_o, kv = 2 * 16 * 8 * 4, 2 * 16 * 2 * 4
    per_chip = [attention_parameters_per_chip(group, 16, tp) for tp in (1, 2, 4, 8)]
    assert per_chip == [q_and_o / tp + kv / min(tp, 2) for tp in (1, 2, 4, 8)]


def test_low_rank_inputs_of_latent_attention_are_repeated_on_each_rank() -> None:
    model = catalog.model("deepseek-v3")
    (group,) = model.attention
    assert isinstance(group, MlaAttention)
    total = group.parameters_per_layer(7168)
    repeated = 7168 * (1536 + 512 + 64)
    for tp in (2, 8):
        sum_over_ranks = tp * attention_parameters_per_chip(group, 7168, tp)
        assert sum_over_ranks - total == pytest.approx((tp - 1) * repeated, rel=1e-9)


@pytest.mark.parametrize("name", catalog.model_names())
def test_more_chips_never_leave_more_on_each(name: str) -> None:
    model = catalog.model(name)
    for precision in (Precision(), Precision(weights="fp8", kv="fp8")):
        loads = [
            linear_bytes_per_chip(model, ranks, precision)
            + expert_bytes_per_chip(model, ranks, precision)
            + embedding_bytes_per_chip(model, ranks, precision)
            for ranks in (pool(tp=tp) for tp in (1, 2, 4, 8))
        ]
        assert all(more > less for more, less in itertools.pairwise(loads))


def test_the_first_and_last_stage_hold_one_embedding_matrix_each() -> None:
    model = catalog.model("llama-3.1-8b")
    matrix = 128256 * 4096 * 2
    assert embedding_bytes_per_chip(model, pool(), BF16) == 2 * matrix
    assert embedding_bytes_per_chip(model, pool(pp=2), BF16) == matrix
    tied = model.model_copy(update={"tied_embeddings": True})
    assert embedding_bytes_per_chip(tied, pool(), BF16) == matrix


def test_deepseek_in_its_own_format_fills_eight_chips_with_what_it_weighs() -> None:
    model = catalog.model("deepseek-v3")
    ranks = pool(tp=8, ep=8)
    per_chip = (
        linear_bytes_per_chip(model, ranks, Precision())
        + expert_bytes_per_chip(model, ranks, Precision())
        + embedding_bytes_per_chip(model, ranks, Precision())
    )
    # 673.0 GB in all; 7/8 of the latent inputs and of the routers is there eight times.
    repeated = 7 * (61 * 7168 * 2112 + 58 * 7168 * 256) * (1 + 4 / 128**2)
    assert per_chip * 8 == pytest.approx(673.0e9 + repeated, rel=1e-4)
