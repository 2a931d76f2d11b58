"""Step costs of every model of the catalogue, on every chip of the catalogue."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from objectives.cost import RankBatch, StepCosts, step_costs, step_seconds
from objectives.cost.step_costs import COEFFICIENTS
from spaces import catalog
from spaces.errors import InputError
from spaces.plan import Pool, Precision

LIMITED = [
    "deepseek-v3.2",
    "deepseek-v4-flash",
    "deepseek-v4-pro",
    "glm-5",
    "glm-5.2",
    "gpt-oss-120b",
    "llama-4-scout",
    "minimax-m3",
]
RECURRENT = ["kimi-k3", "qwen3-next-80b-a3b", "qwen3.5-397b-a17b", "qwen3.8-2.4t-a95b"]


def costs(model: str, chip: str = "h200", **layout: int) -> StepCosts:
    pool = Pool(role="aggregated", chip=chip, **layout)
    return step_costs(catalog.model(model), catalog.chip(chip), pool, Precision(), "vllm")


def decode(found: StepCosts, batch: int, context: int) -> float:
    return sum(step_seconds(found, [RankBatch((context,) * batch)]))


def prefill(found: StepCosts, new: int, cached: int = 0) -> float:
    return sum(step_seconds(found, [RankBatch((), ((new, cached),))]))


@pytest.mark.parametrize("chip", catalog.chip_names())
def test_every_model_has_costs_on_a_chip_or_the_missing_figure_is_named(chip: str) -> None:
    known = catalog.chip(chip).facts()
    for model in catalog.model_names():
        if "bf16_tflops" not in known:
            with pytest.raises(InputError, match="bf16_tflops: the answer needs a figure"):
                costs(model, chip)
            continue
        found = costs(model, chip)
        assert np.isfinite(found.token_s).all()
        assert (np.diff(found.token_s, axis=1) >= 0).all()
        for name in COEFFICIENTS:
            assert np.isfinite(getattr(found, name)).all()
            assert (getattr(found, name) >= 0).all(), (model, name)


def test_several_chips_without_a_known_fabric_are_told() -> None:
    with pytest.raises(InputError, match="scaleup_gb_per_s: the answer needs a figure of sn40l"):
        costs("llama-3.1-8b", "sn40l", tp=2)


@pytest.mark.parametrize("model", catalog.model_names())
def test_more_work_never_takes_less_time(model: str) -> None:
    found = costs(model, tp=8, max_num_seqs=256)
    contexts = [1, 100, 127, 128, 129, 2047, 2049, 4095, 4097, 8191, 8193, 100_000]
    for shorter, longer in itertools.pairwise(contexts):
        assert decode(found, 8, longer) >= decode(found, 8, shorter)
        assert prefill(found, 512, longer) >= prefill(found, 512, shorter)
        assert decode(found, 16, shorter) >= decode(found, 8, shorter)
    for fewer, more in itertools.pairwise([1, 64, 500, 4096, 8192]):
        assert prefill(found, more) >= prefill(found, fewer)


@pytest.mark.parametrize("figure", ["hbm_gb_per_s", "bf16_tflops", "fp8_tflops"])
@pytest.mark.parametrize("model", [*LIMITED, *RECURRENT])
def test_a_better_chip_is_never_slower(model: str, figure: str) -> None:
    plain = catalog.chip("b200")
    doubled = getattr(plain, figure).model_copy(update={"value": 2 * getattr(plain, figure).value})
    pool = Pool(role="aggregated", chip="b200", tp=8)
    before, after = (
        step_costs(catalog.model(model), chip, pool, Precision(), "vllm")
        for chip in (plain, plain.model_copy(update={figure: doubled}))
    )
    for name in ("token_s", "expert_s", *COEFFICIENTS):
        assert (getattr(after, name) <= getattr(before, name) * (1 + 1e-12)).all(), name


@pytest.mark.parametrize("model", LIMITED)
def test_what_is_attended_to_stops_growing_at_the_limit(model: str) -> None:
    found, limit = costs(model, tp=8), catalog.model(model).read_limit_tokens
    assert found.window_tokens == limit
    below = decode(found, 8, limit) - decode(found, 8, limit - 50)
    above = decode(found, 8, limit + 150) - decode(found, 8, limit + 100)
    assert below > above > 0
    assert above == pytest.approx(8 * 50 * found.decode_token_s[0], rel=1e-6)


def test_sparse_attention_beats_dense_on_long_contexts_and_costs_an_index_on_short_ones() -> None:
    dense, sparse = costs("deepseek-v3", "b200", tp=8), costs("deepseek-v3.2", "b200", tp=8)
    assert decode(sparse, 64, 1000) > decode(dense, 64, 1000)
    assert decode(sparse, 64, 100_000) < 0.5 * decode(dense, 64, 100_000)
    # Every tensor-parallel rank scores with all heads of the index, so prefill gains without.
    alone = [costs(model, "b200") for model in ("deepseek-v3", "deepseek-v3.2")]
    assert prefill(alone[1], 8192, 120_000) < 0.5 * prefill(alone[0], 8192, 120_000)


def test_a_reused_selection_saves_the_indexers() -> None:
    own, reused = costs("glm-5", "b200", tp=8), costs("glm-5.2", "b200", tp=8)
    saved = reused.decode_token_s[0] / own.decode_token_s[0]
    assert saved == pytest.approx(21 / 78)
    assert reused.decode_window_token_s == pytest.approx(own.decode_window_token_s)


def test_index_keys_and_selected_latents_are_read_at_memory_speed() -> None:
    """One rank of many, so that few heads multiply: 61 layers, 132 and 1152 bytes a token."""
    found = costs("deepseek-v3.2", "h200", tp=16)
    keys, latents = 61 * 132 / 4800e9, 61 * 576 * 2 / 4800e9
    assert 1.0 < found.decode_token_s[0] / keys < 1.5
    assert 1.0 < found.decode_window_token_s[0] / latents < 2.0


def test_compressed_attention_reads_a_fraction_of_what_latents_take() -> None:
    latent, compressed = costs("kimi-k2", "b200", tp=8), costs("deepseek-v4-pro", "b200", tp=8)
    grown = [decode(c, 64, 500_000) - decode(c, 64, 400_000) for c in (latent, compressed)]
    assert grown[1] < grown[0] / 7  # 4.1 kB a token against 70 kB, and its index


def test_a_state_costs_the_same_whatever_the_context() -> None:
    found = costs("qwen3.5-397b-a17b", "h200", tp=8)
    state = 45 * (64 * 128 * 128 * 4 + 3 * 12288 * 2) / 8
    assert found.decode_request_s[0] == pytest.approx(2 * state / (4800e9 * 0.7), rel=0.15)
    per_token = 15 * 2 * 256 * 2 / 4800e9  # two KV heads over 8 chips: one each
    assert 1.0 < found.decode_token_s[0] / per_token < 2.0


def test_several_residual_streams_cost_their_traffic() -> None:
    model = catalog.model("deepseek-v4-pro")
    pool = Pool(role="aggregated", chip="b200", tp=8, max_num_batched_tokens=8192)
    one, four = (
        step_costs(
            model.model_copy(update={"residual_streams": streams}),
            catalog.chip("b200"),
            pool,
            Precision(),
            "vllm",
        )
        for streams in (1, 4)
    )
    moved = 61 * 2 * 3 * 4 * 7168 * 2 * 8192 / 8000e9
    assert 1.0 < (four.token_s[0, -1] - one.token_s[0, -1]) / moved < 2.5


def test_layers_of_one_part_lose_half_as_much_outside_the_graph() -> None:
    model = catalog.model("qwen3-32b")
    split = model.model_copy(update={"single_part_layers": True})
    pool = Pool(role="aggregated", chip="h200")
    whole, parts = (
        step_costs(one, catalog.chip("h200"), pool, Precision(), "vllm") for one in (model, split)
    )
    assert (split.layers, model.layers) == (128, 64)
    assert parts.eager_s == pytest.approx(whole.eager_s)
