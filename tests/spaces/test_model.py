"""What a model's layers hold and what a token costs them, against counts from elsewhere."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spaces import catalog
from spaces.documents import validated
from spaces.errors import InputError
from spaces.model import (
    CompressedAttention,
    DenseFfn,
    GdnAttention,
    GqaAttention,
    KdaAttention,
    MambaAttention,
    MlaAttention,
    ModelSpec,
    MoeFfn,
    RecurrentAttention,
    SparseIndex,
)


def experts(total: int, top_k: int) -> MoeFfn:
    return MoeFfn(layers=1, routed_experts=total, top_k=top_k, expert_intermediate_size=64)


def small(**changes: object) -> dict[str, object]:
    """The data of a small valid model, with some keys changed."""
    return {
        "name": "small",
        "source": "made up",
        "hidden_size": 64,
        "vocab_size": 100,
        "max_context_tokens": 1000,
        "attention": [{"kind": "gqa", "layers": 2, "heads": 8, "kv_heads": 2, "head_dim": 8}],
        "ffn": [{"kind": "dense", "layers": 2, "intermediate_size": 128}],
        "native_weights": {"routed_experts": "bf16", "linear": "bf16"},
        **changes,
    }


def spec(**changes: object) -> ModelSpec:
    return validated(ModelSpec, small(**changes), "small.yaml")


@pytest.mark.parametrize(
    ("total", "top_k", "expected"),
    [
        (128, 4, {1: "4", 4: "15.3", 16: "51.0", 64: "111", 128: "126", 256: "128"}),
        (128, 8, {1: "8", 4: "29.1", 16: "82.4", 64: "126", 128: "128", 256: "128"}),
        (256, 8, {1: "8", 4: "30.5", 16: "102", 64: "222", 128: "252", 256: "256"}),
        (384, 8, {1: "8", 4: "31.0", 16: "110", 64: "284", 128: "358", 256: "382"}),
        (896, 16, {1: "16", 4: "62.3", 16: "224", 64: "613", 128: "807", 256: "887"}),
        (48, 3, {1: "3", 4: "10.9", 16: "30.9", 64: "47.2", 128: "48", 256: "48"}),
    ],
)
def test_distinct_experts_of_known_models(
    total: int, top_k: int, expected: dict[int, str]
) -> None:
    for tokens, shown in expected.items():
        decimals = len(shown.partition(".")[2])
        found = experts(total, top_k).distinct_experts(tokens)
        assert abs(found - float(shown)) <= 0.5 * 10**-decimals + 1e-9, (tokens, found)


@pytest.mark.parametrize(
    ("total", "top_k", "half", "most"),
    [(128, 4, 22, 73), (128, 8, 11, 36), (256, 8, 22, 73), (384, 8, 33, 109), (896, 16, 39, 128)],
)
def test_batches_that_touch_half_and_nine_tenths_of_the_experts(
    total: int, top_k: int, half: int, most: int
) -> None:
    moe = experts(total, top_k)
    for batch, share in [(half, 0.5), (most, 0.9)]:
        assert moe.distinct_experts(batch - 1) < share * total < moe.distinct_experts(batch + 1)


@pytest.mark.parametrize(
    ("total", "top_k", "tokens"), [(4, 2, 2), (5, 2, 3), (5, 4, 2), (6, 1, 3)]
)
def test_distinct_experts_equal_the_mean_over_every_possible_draw(
    total: int, top_k: int, tokens: int
) -> None:
    picks = list(itertools.combinations(range(total), top_k))
    draws = list(itertools.product(picks, repeat=tokens))
    mean = sum(len(set().union(*draw)) for draw in draws) / len(draws)
    assert experts(total, top_k).distinct_experts(tokens) == pytest.approx(mean, rel=1e-12)


@given(st.integers(1, 64), st.data())
def test_distinct_experts_grow_with_the_batch_and_never_pass_what_is_there(
    total: int, data: st.DataObject
) -> None:
    moe = experts(total, data.draw(st.integers(1, total)))
    counts = [moe.distinct_experts(tokens) for tokens in range(40)]
    assert counts[0] == 0.0
    assert counts[1] == pytest.approx(moe.top_k)
    assert all(earlier <= later + 1e-9 for earlier, later in itertools.pairwise(counts))
    assert all(n <= min(total, moe.top_k * b) + 1e-9 for b, n in enumerate(counts))


def test_more_experts_picked_than_there_are_is_refused() -> None:
    moe = {
        "kind": "moe",
        "layers": 2,
        "routed_experts": 8,
        "top_k": 9,
        "expert_intermediate_size": 4,
    }
    with pytest.raises(InputError, match=r"ffn\.0\.top_k: a token cannot pick more.*9 of 8"):
        spec(ffn=[moe])


@pytest.mark.parametrize("part", [{"shared_experts": 1}, {"shared_intermediate_size": 64}])
def test_shared_experts_without_a_size_or_a_size_without_them_are_refused(
    part: dict[str, int],
) -> None:
    moe = {"kind": "moe", "layers": 2, "routed_experts": 8, "top_k": 1}
    with pytest.raises(InputError, match="go together"):
        spec(ffn=[{**moe, "expert_intermediate_size": 4, **part}])


def test_kv_heads_that_do_not_divide_the_heads_are_refused() -> None:
    with pytest.raises(InputError, match=r"attention\.0\.kv_heads.*3 of 8"):
        spec(attention=[{"kind": "gqa", "layers": 2, "heads": 8, "kv_heads": 3, "head_dim": 8}])


def test_attention_and_feed_forward_layers_must_be_equally_many() -> None:
    with pytest.raises(InputError, match=r"small\.yaml: ffn: .*2 and 3"):
        spec(ffn=[{"kind": "dense", "layers": 3, "intermediate_size": 128}])


def test_grouped_query_attention_by_hand() -> None:
    group = GqaAttention(layers=1, heads=8, kv_heads=2, head_dim=4)
    # Q and O are 16 x 32 each, K and V 16 x 8 each.
    assert group.parameters_per_layer(16) == 2 * 16 * 32 + 2 * 16 * 8
    assert group.kv_elements_per_token == 16
    assert group.flops_per_pair == 2 * (2 * 8 * 4)
    assert group.fixed_bytes("bf16") == group.read_limit_tokens == 0
    biased = GqaAttention(layers=1, heads=8, kv_heads=2, head_dim=4, bias=True)
    assert biased.parameters_per_layer(16) - group.parameters_per_layer(16) == 32 + 8 + 8 + 16


def test_latent_attention_by_hand() -> None:
    group = MlaAttention(
        layers=1,
        heads=4,
        q_lora_rank=6,
        kv_lora_rank=5,
        qk_nope_head_dim=3,
        qk_rope_head_dim=2,
        v_head_dim=7,
    )
    query = 10 * 6 + 6 * 4 * (3 + 2)
    latent = 10 * (5 + 2)
    expanded = 5 * 4 * (3 + 7)
    output = 4 * 7 * 10
    assert group.parameters_per_layer(10) == query + latent + expanded + output
    assert group.kv_elements_per_token == 5 + 2
    assert group.flops_per_pair == 4 * (2 * (3 + 2) + 2 * 7)
    assert group.absorbed_flops_per_pair == 4 * (2 * (5 + 2) + 2 * 5)


def test_delta_attention_keeps_a_state_and_nothing_per_token() -> None:
    group = KdaAttention(layers=1, heads=96, head_dim=128, conv_kernel=4)
    assert group.kv_bytes_per_token("bf16") == 0
    assert group.state_bytes == 96 * 128 * 128 * 4 + 3 * 3 * 96 * 128 * 2


def norm_and_bias_parameters(model: ModelSpec, per_layer: int = 0) -> int:
    """Two norms a layer and a last one, as wide as the model, and what else a layer has."""
    return (2 * model.layers + 1) * model.hidden_size + per_layer


@pytest.mark.parametrize(
    ("name", "other", "published"),
    [
        ("llama-3.1-8b", 0, 8_030_261_248),
        ("llama-3.3-70b", 0, 70_553_706_496),
        ("llama-3.1-405b", 0, 405_853_388_800),
        ("mixtral-8x7b", 0, 46_702_792_704),
        ("qwen3-32b", 64 * 2 * 128, 32_762_123_264),  # norms of queries and keys
        ("qwen3-30b-a3b", 48 * 2 * 128, 30_532_122_624),
        ("qwen3-235b-a22b", 94 * 2 * 128, 235_093_634_560),
        ("gpt-oss-20b", 24 * (64 + 32), 20_914_757_184),  # sinks of the heads, router bias
        ("gpt-oss-120b", 36 * (64 + 128), 116_829_156_672),
        ("deepseek-v3", 61 * (1536 + 512) + 58 * 256, 671_026_419_200),  # latent norms, bias
        ("kimi-k2", 61 * (1536 + 512) + 60 * 384, 1_026_408_232_448),
    ],
)
def test_parameters_with_norms_are_exactly_those_of_the_published_checkpoint(
    name: str, other: int, published: int
) -> None:
    model = catalog.model(name)
    assert model.total_parameters + norm_and_bias_parameters(model, other) == published


def test_active_parameters_leave_out_the_input_embedding_and_experts_not_picked() -> None:
    model = catalog.model("mixtral-8x7b")
    expert = 3 * 4096 * 14336
    idle = 32 * 6 * expert + 32000 * 4096
    assert model.total_parameters - model.active_parameters == idle


def test_tied_embeddings_are_stored_once_but_still_read() -> None:
    apart, tied = spec(), spec(tied_embeddings=True)
    assert apart.total_parameters - tied.total_parameters == 100 * 64
    assert apart.active_parameters == tied.active_parameters


def test_windowed_layers_are_counted_apart_from_those_that_keep_the_whole_context() -> None:
    model = catalog.model("gpt-oss-120b")
    per_layer = 2 * 8 * 64 * 2
    assert model.kv_bytes_per_token("bf16") == 18 * per_layer
    assert model.windowed_kv_bytes_per_token("bf16") == 18 * per_layer
    assert model.window_tokens == 128


def test_fp8_halves_the_kv_cache_but_for_index_keys_and_scales() -> None:
    for name in catalog.model_names():
        model = catalog.model(name)
        narrow, wide = model.kv_bytes_per_token("fp8"), model.kv_bytes_per_token("bf16")
        plain = all(
            isinstance(group, RecurrentAttention) or not group.model_dump().get("index")
            for group in model.attention
        )
        assert narrow * 2 == wide if plain else wide / 2 < narrow < wide, name


INDEX = SparseIndex(heads=3, head_dim=5, key_bytes=9)


def test_an_index_by_hand() -> None:
    # Queries 6 x 15, keys 10 x 5 and weights of the heads 10 x 3.
    assert INDEX.parameters(10, 6) == 90 + 50 + 30
    assert INDEX.flops_per_pair == 2 * 3 * 5
    latent = {"layers": 1, "heads": 4, "q_lora_rank": 6, "kv_lora_rank": 5}
    sizes = {"qk_nope_head_dim": 3, "qk_rope_head_dim": 2, "v_head_dim": 7}
    dense = MlaAttention.model_validate({**latent, **sizes})
    sparse = MlaAttention.model_validate({**latent, **sizes, "top_k_tokens": 8, "index": INDEX})
    assert sparse.parameters_per_layer(10) - dense.parameters_per_layer(10) == 170
    assert sparse.repeated_parameters(10) == 10 * (6 + 5 + 2) + 170
    assert sparse.kv_bytes_per_token("fp8") == 7 + 9
    assert (dense.read_limit_tokens, sparse.read_limit_tokens) == (0, 8)


def test_what_is_kept_and_what_is_read_are_told_apart() -> None:
    model = catalog.model("deepseek-v3.2")
    assert (model.window_tokens, model.read_limit_tokens) == (0, 2048)
    assert model.windowed_kv_bytes_per_token("bf16") == 0
    windowed = catalog.model("gpt-oss-120b")
    assert windowed.window_tokens == windowed.read_limit_tokens == 128
    assert catalog.model("deepseek-v4-pro").read_limit_tokens == 1024 * 4


def test_compressed_attention_by_hand() -> None:
    sizes = {"layers": 1, "heads": 4, "head_dim": 8, "rope_head_dim": 2, "q_lora_rank": 6}
    sizes |= {"output_groups": 2, "output_lora_rank": 3, "local_tokens": 16}
    plain = CompressedAttention.model_validate(sizes)
    # Query 10 x 6 and 6 x 32, entry 10 x 8, two groups of 16 x 3, output 6 x 10.
    assert plain.parameters_per_layer(10) == 60 + 192 + 80 + 96 + 60
    assert plain.kv_bytes_per_token("bf16") == 0
    assert plain.fixed_bytes("bf16") == 16 * 8 * 2
    assert plain.fixed_bytes("fp8") == 16 * (6 + 2 * 2 + 8)
    pooled = CompressedAttention.model_validate(sizes | {"ratio": 32})
    assert pooled.parameters_per_layer(10) - plain.parameters_per_layer(10) == 2 * 10 * 8
    assert pooled.kv_bytes_per_token("bf16") == 16 / 32
    assert pooled.read_limit_tokens == 0
    chosen = {"ratio": 4, "overlap": True, "top_k_entries": 7, "index": INDEX}
    sparse = CompressedAttention.model_validate(sizes | chosen)
    index = 6 * 15 + 10 * (4 * 5 + 3)
    added = 4 * 10 * 8 + index
    assert sparse.parameters_per_layer(10) - plain.parameters_per_layer(10) == added
    assert sparse.kv_bytes_per_token("fp8") == (18 + 9) / 4
    assert sparse.read_limit_tokens == 28
    assert sparse.flops_per_pair == 4 * 4 * 8


def test_gated_delta_attention_by_hand() -> None:
    group = GdnAttention(
        layers=1, key_heads=2, value_heads=4, key_head_dim=3, value_head_dim=5, conv_kernel=4
    )
    # Q and K 2 x 6, V and gate 2 x 20, decay and beta 2 x 4, output 20; convolution over 32.
    assert group.parameters_per_layer(10) == 10 * (12 + 40 + 8 + 20) + 4 * 32
    assert group.state_bytes == 4 * 3 * 5 * 4 + 3 * 32 * 2
    assert group.heads == 2


def test_state_space_layers_by_hand() -> None:
    group = MambaAttention(layers=1, heads=4, head_dim=3, state_size=5, groups=2, conv_kernel=4)
    # Gate and input 2 x 12, vectors 2 x 10, steps 4, output 12; convolution with bias over 32.
    assert group.parameters_per_layer(10) == 10 * (24 + 20 + 4 + 12) + 5 * 32
    assert group.state_bytes == 12 * 5 * 4 + 3 * 32 * 2


def test_several_residual_streams_have_mixers_around_both_parts_of_a_layer() -> None:
    plain, mixed = spec(), spec(residual_streams=4)
    # To read, to write and to mix 4 streams, from all 4 x 64 elements; 2 layers, 2 parts.
    assert mixed.total_parameters - plain.total_parameters == 2 * 2 * 256 * (4 + 4 + 16)


def test_layers_of_one_part_need_not_pair_up() -> None:
    model = spec(
        single_part_layers=True, ffn=[{"kind": "dense", "layers": 5, "intermediate_size": 128}]
    )
    assert (model.layers, model.parts) == (7, 7)
    assert (spec().layers, spec().parts) == (2, 4)


def test_feed_forward_without_a_gate_has_two_matrices() -> None:
    assert DenseFfn(layers=1, intermediate_size=8, gated=False).parameters_per_layer(4) == 64
    size = {"routed_experts": 4, "top_k": 1, "expert_intermediate_size": 8, "gated": False}
    size |= {"layers": 1, "shared_experts": 1, "shared_intermediate_size": 6, "bias": True}
    moe = MoeFfn.model_validate(size)
    assert moe.parameters_per_expert(4) == 2 * 4 * 8 + 8 + 4
    assert moe.shared_parameters_per_layer(4) == 2 * 4 * 6 + 4 * 4


GQA = {"kind": "gqa", "layers": 1, "heads": 8, "kv_heads": 2, "head_dim": 8}
KDA = {"kind": "kda", "layers": 2, "heads": 2, "head_dim": 8, "conv_kernel": 4}


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        ([GQA | {"window_tokens": 8}, GQA | {"window_tokens": 9}], "agree on its length.*8 and 9"),
        ([GQA | {"window_tokens": 8}, GQA | {"top_k_tokens": 9}], "agree on its length.*8 and 9"),
        ([GQA | {"layers": 2, "window_tokens": 8, "top_k_tokens": 8}], "window or a selection"),
        ([GQA | {"layers": 2, "index": INDEX.model_dump()}], "top_k_tokens is needed beside it"),
        ([KDA], "some layer must keep a KV cache"),
    ],
)
def test_attention_that_cannot_be_counted_is_refused(groups: list[object], said: str) -> None:
    with pytest.raises(InputError, match=said):
        spec(attention=groups)


def test_native_weights_are_the_checkpoints_own() -> None:
    model = catalog.model("kimi-k2.5")
    assert model.weights("native") == model.native_weights


def test_four_bit_conversion_of_a_mixture_leaves_its_other_layers_alone() -> None:
    weights = catalog.model("deepseek-r1").weights("nvfp4")
    assert (weights.routed_experts, weights.linear, weights.embeddings) == ("nvfp4", "fp8", "bf16")


def test_conversion_to_eight_bits_takes_the_other_layers_along() -> None:
    weights = catalog.model("qwen3-235b-a22b").weights("fp8")
    assert (weights.routed_experts, weights.linear, weights.embeddings) == ("fp8", "fp8", "bf16")


def test_a_dense_model_is_converted_whole() -> None:
    assert catalog.model("llama-3.3-70b").weights("nvfp4").linear == "nvfp4"


def test_attention_cost_of_a_token_at_8k_context_is_that_of_the_published_ledger() -> None:
    # Step-3 report, arXiv 2507.19427, table 2: bytes in fp8 and FLOPs at 8192 tokens.
    deepseek, qwen = catalog.model("deepseek-v3"), catalog.model("qwen3-235b-a22b")
    (group,) = qwen.attention
    assert isinstance(group, GqaAttention)
    assert deepseek.kv_bytes_per_token("fp8") * 8192 == pytest.approx(2.88e8, rel=0.005)
    assert qwen.kv_bytes_per_token("fp8") * 8192 == pytest.approx(7.89e8, rel=0.005)
    assert group.layers * group.flops_per_pair * 8192 == pytest.approx(2.52e10, rel=0.005)
