"""Laws of the step costs of whole models in layouts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from objectives.cost import RankBatch, StepCosts, step_costs, step_seconds
from objectives.cost.build import graph_tokens, token_grid
from objectives.cost.step_costs import COEFFICIENTS
from spaces import catalog
from spaces.chip import ChipSpec, Fact
from spaces.errors import InputError
from spaces.model import ModelSpec
from spaces.plan import EngineName, Pool, Precision

Costs = Callable[..., StepCosts]

LAYOUTS = [
    {"tp": 1},
    {"tp": 8},
    {"tp": 8, "ep": 8},
    {"tp": 4, "pp": 2},
    {"tp": 1, "dp": 8, "ep": 8},
    {"tp": 2, "dp": 4, "ep": 1},
    {"tp": 2, "dp": 8, "ep": 16},
]


def _decode(costs: StepCosts, batch: int, context: int, ranks: int = 1) -> float:
    return sum(step_seconds(costs, [RankBatch((context,) * batch)] * ranks))


def _prefill(costs: StepCosts, new: int, cached: int = 0) -> float:
    return sum(step_seconds(costs, [RankBatch((), ((new, cached),))]))


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("chip", ["h100", "b200", "gb300", "mi355x"])
@pytest.mark.parametrize("model", ["deepseek", "llama", "gpt-oss", "linear"])
def test_arrays_are_whole_and_never_fall(
    costs: Costs, model: str, chip: str, layout: dict[str, int]
) -> None:
    found = costs(model, chip, **layout)
    stages = layout.get("pp", 1)
    for table in (found.token_s, found.expert_s):
        assert table.shape == (stages, len(found.grid))
        assert table.dtype == np.float64
        assert table.flags.c_contiguous
        assert np.isfinite(table).all()
        assert (np.diff(table, axis=1) >= 0).all()
        assert (table >= 0).all()
    for name in COEFFICIENTS:
        values = getattr(found, name)
        assert values.shape == (stages,)
        assert (values >= 0).all(), name
    assert found.host_s > 0
    assert found.request_s > 0
    assert (found.expert_s > 0).any() == (model != "llama")


@settings(deadline=None, max_examples=60)
@given(
    batch=st.integers(1, 256),
    context=st.integers(1, 100_000),
    more=st.integers(1, 1000),
    new=st.integers(1, 8192),
)
def test_more_work_never_takes_less_time(
    costs: Costs, batch: int, context: int, more: int, new: int
) -> None:
    for model in ("deepseek", "gpt-oss", "linear"):
        found = costs(model, "h200", tp=8, max_num_seqs=512)
        assert _decode(found, batch, context + more) >= _decode(found, batch, context)
        assert _decode(found, min(batch + more, 512), context) >= _decode(found, batch, context)
        assert _prefill(found, new, context + more) >= _prefill(found, new, context)
        assert _prefill(found, new, context) >= _prefill(found, max(1, new - more), context)


@pytest.mark.parametrize(
    "figure",
    [
        "hbm_gb_per_s",
        "bf16_tflops",
        "fp8_tflops",
        "fp4_tflops",
        "scaleup_gb_per_s",
        "scaleout_gb_per_s",
    ],
)
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_better_chip_is_never_slower(
    costs: Costs, chips: dict[str, ChipSpec], figure: str, layout: dict[str, int]
) -> None:
    plain = chips["b200"]
    doubled = Fact(value=2 * getattr(plain, figure).value, source="assumed")
    better = plain.model_copy(update={figure: doubled})
    for model in ("deepseek", "gpt-oss", "linear"):
        before, after = (costs(model, chip, **layout) for chip in (plain, better))
        for name in ("token_s", "expert_s", *COEFFICIENTS):
            assert (getattr(after, name) <= getattr(before, name) * (1 + 1e-12)).all(), name


def test_a_dense_decode_step_is_close_to_its_roofline(costs: Costs) -> None:
    """Llama-3.3-70B in bf16 on 2 H200: weights 69.5e9 x 2 bytes, KV 327,680 bytes a token."""
    found = costs("llama", "h200", tp=2)
    for batch, context in ((1, 1000), (32, 4000), (64, 8000)):
        moved = 69.5e9 * 2 + batch * context * 327_680
        ideal = moved / 2 / 4800e9
        assert 1.2 * ideal < _decode(found, batch, context) < 1.75 * ideal


def test_a_dense_prefill_runs_at_a_usual_share_of_the_peak(costs: Costs) -> None:
    found = costs("llama", "h100", tp=8, max_num_batched_tokens=8192)
    flops = 2 * 68.5e9 * 8192 + 4 * 64 * 128 * 80 * 8192 * 8193 / 2
    share = flops / 8 / 989e12 / _prefill(found, 8192)
    assert 0.35 < share < 0.7


def test_tensor_parallelism_halves_large_products_but_not_latent_reading(costs: Costs) -> None:
    one, two = (costs("llama", "b200", tp=tp, max_num_batched_tokens=8192) for tp in (1, 2))
    assert 0.5 < two.token_s[0, -1] / one.token_s[0, -1] < 0.65
    four, eight = (costs("deepseek", "b200", tp=tp) for tp in (4, 8))
    assert eight.decode_token_s == pytest.approx(four.decode_token_s)


@pytest.mark.parametrize("model", ["llama", "deepseek", "gpt-oss"])
@pytest.mark.parametrize("stages", [2, 3, 4])
def test_stages_sum_to_the_whole_model(costs: Costs, model: str, stages: int) -> None:
    whole, cut = (costs(model, "h200", tp=8, pp=pp) for pp in (1, stages))
    for name in COEFFICIENTS:
        assert getattr(cut, name).sum() == pytest.approx(getattr(whole, name).sum())
    assert cut.expert_s.sum(axis=0) == pytest.approx(whole.expert_s[0])
    sends = cut.token_s.sum(axis=0) - whole.token_s[0]
    assert (sends > 0).all()
    assert sends[1] < 1e-3 * stages


def test_the_head_is_in_the_last_stage(costs: Costs) -> None:
    found = costs("llama", "h200", tp=8, pp=2)
    head = found.token_s[1, 1] - found.token_s[0, 1]
    reading = 128256 * 8192 * 2 / 8 / 4800e9
    assert head + 1.5e-5 > reading  # the first stage sends its hidden states, the last does not


def test_windowed_layers_stop_growing(costs: Costs) -> None:
    found = costs("gpt-oss", "h100", tp=1)
    assert found.window_tokens == 128
    grown = _decode(found, 8, 10_000) - _decode(found, 8, 1000)
    assert grown == pytest.approx(8 * 9000 * found.decode_token_s[0])
    early = _decode(found, 8, 100) - _decode(found, 8, 50)
    assert early == pytest.approx(8 * 50 * (found.decode_token_s + found.decode_window_token_s)[0])


def test_a_midfill_costs_more_than_a_prefill_of_its_size_and_less_than_the_whole(
    costs: Costs,
) -> None:
    found = costs("deepseek", "b200", tp=8)
    alone, behind = _prefill(found, 500), _prefill(found, 500, cached=100_000)
    assert alone < behind < _prefill(found, 8192, cached=92_308)


def test_a_chunk_loses_the_full_graph(costs: Costs) -> None:
    found = costs("qwen", "b300", tp=8)
    batch = RankBatch((1000,) * 8)
    mixed = RankBatch((1000,) * 8, ((1, 0),))
    loss = sum(step_seconds(found, [mixed])) - sum(step_seconds(found, [batch]))
    assert 0.5e-3 < loss < 5e-3


def test_data_parallel_ranks_decode_more_requests_in_the_same_time(costs: Costs) -> None:
    one = costs("deepseek", "gb200", tp=8, ep=8)
    spread = costs("deepseek", "gb200", tp=1, dp=8, ep=8)
    assert _decode(spread, 32, 4000, ranks=8) < _decode(one, 256, 4000)


def test_tensorrt_llm_sends_tokens_to_their_experts_alone_where_nvlink_leaves_the_node(
    costs: Costs,
) -> None:
    """A gather of 300 tokens a rank takes milliseconds more. Before 1.2 eight ranks gathered, and
    sixteen, more than a token has experts, did not.
    """

    def decode(chip: str, ranks: int, **more: Any) -> float:
        layout = {"dp": ranks, "ep": ranks, "max_num_seqs": 512}
        found = costs("deepseek", chip, engine="trtllm", **layout, **more)
        return _decode(found, 300, 1000, ranks=ranks)

    direct = decode("gb200", 8)
    assert decode("gb200", 8, release="1.2.0") == direct
    assert decode("gb200", 8, release="1.1.0") > direct + 3e-3
    assert decode("gb200", 16, release="1.1.0") == decode("gb200", 16)
    assert decode("b200", 8) > direct + 3e-3
    nvfp4 = Precision(weights="nvfp4")
    gathered = [decode("b200", 8, precision=p) for p in (Precision(), nvfp4)]
    assert gathered[0] - gathered[1] > direct - decode("gb200", 8, precision=nvfp4) + 1e-3


def test_each_rank_has_a_scheduler_of_its_own(costs: Costs) -> None:
    one, eight = (costs("deepseek", "gb200", tp=1, dp=dp, ep=dp) for dp in (1, 8))
    assert eight.request_s == pytest.approx(one.request_s / 8)
    assert eight.host_s == one.host_s


def test_wide_expert_parallelism_meets_the_published_production_rate(costs: Costs) -> None:
    """DeepSeek on H800: 14.8 k output tokens/s a node, context 4,989, some 88 requests a GPU.

    Their steps overlap exchanges and predict a second token; ours do neither.
    """
    found = costs("deepseek", "h100", tp=1, dp=128, ep=128, engine="sglang")
    seconds = step_seconds(found, [RankBatch((4989,) * 88)] * 128)[0]
    assert 88 / seconds == pytest.approx(14_800 / 8, rel=0.35)


def test_four_bit_experts_decode_faster_where_the_chip_has_them(costs: Costs) -> None:
    whole = costs("deepseek", "b200", tp=8)
    packed = costs("deepseek", "b200", tp=8, precision=Precision(weights="nvfp4"))
    assert packed.expert_s[0, 64] < 0.75 * whole.expert_s[0, 64]
    assert packed.token_s == pytest.approx(whole.token_s)  # linears keep the native format


def test_the_grid_is_dense_for_decode_and_reaches_all_ranks() -> None:
    pool = Pool(role="decode", chip="h100", tp=1, dp=8, ep=8, max_num_batched_tokens=4096)
    grid = token_grid(pool)
    assert list(grid[:65]) == list(range(65))
    assert grid[-1] == 8 * 4096
    assert (np.diff(grid) > 0).all()
    assert 100 <= len(grid) <= 140
    assert list(token_grid(pool.model_copy(update={"dp": 1, "max_num_batched_tokens": 3}))) == [
        *range(65),
        *token_grid(Pool(role="decode", chip="h100", max_num_batched_tokens=256))[65:],
    ]


def test_batches_are_padded_to_the_next_captured_size() -> None:
    padded = graph_tokens(600)
    asked = [1, 2, 3, 5, 8, 9, 17, 255, 257, 273, 512, 513, 600]
    assert [int(padded[n]) for n in asked] == [
        *(1, 2, 4, 8, 8, 16, 24, 256, 272, 288, 512),
        *(513, 600),
    ]
    assert len(padded) == 601
    assert (padded[1:] >= np.arange(1, 601)).all()


def test_equal_arguments_share_one_answer(
    models: dict[str, ModelSpec], chips: dict[str, ChipSpec]
) -> None:
    def build(tp: int) -> StepCosts:
        pool = Pool(role="decode", chip="h100", tp=tp)
        return step_costs(models["llama"], chips["h100"], pool, Precision(), "vllm")

    assert build(4) is build(4)
    assert build(4) is not build(2)


def test_an_unknown_efficiency_table_is_told(costs: Costs, chips: dict[str, ChipSpec]) -> None:
    wrong = chips["h100"].model_copy(update={"efficiency": "h20"})
    with pytest.raises(InputError, match="got 'h20'; did you mean h200"):
        costs("llama", wrong)


def test_an_older_release_costs_more_where_it_is_known_to() -> None:
    mine, pool = catalog.model("deepseek-r1"), Pool(role="aggregated", chip="mi300x", tp=8)
    known = [
        step_seconds(
            step_costs(mine, catalog.chip(name), pool, Precision(), "sglang", None, release),
            [RankBatch((1000,) * 4)],
        )[0]
        for name, release in (
            ("mi300x", "0.5.9"),
            ("mi300x", "0.5.12"),
            ("mi300x", ""),
            ("mi355x", "0.5.9"),
            ("mi355x", ""),
        )
    ]
    layers = sum(ffn.layers for ffn in mine.ffn if ffn.kind == "moe")
    assert known[0] - known[1] == pytest.approx(layers * 200e-6)
    assert known[1] == known[2]
    assert known[3] == known[4]


def test_trtllm_had_slower_experts_in_fp8_alone() -> None:
    """DeepGEMM's, before its own kernel for Blackwell."""
    mine, pool = catalog.model("deepseek-r1"), Pool(role="aggregated", chip="b200", tp=8, ep=8)

    def lost(weights: str) -> float:
        precision = Precision.model_validate({"weights": weights})
        older, newer = (
            step_seconds(
                step_costs(mine, catalog.chip("b200"), pool, precision, "trtllm", None, release),
                [RankBatch((1000,) * 4)],
            )[0]
            for release in ("1.1.0", "1.2.0")
        )
        return older - newer

    layers = sum(ffn.layers for ffn in mine.ffn if ffn.kind == "moe")
    assert lost("fp8") == pytest.approx(layers * 31e-6)
    assert lost("nvfp4") == 0.0


@pytest.mark.parametrize("engine", ["trtllm", "vllm"])
def test_inputs_of_one_scale_a_tensor_need_no_kernel_of_their_own(engine: EngineName) -> None:
    """Four products a layer lose what their benchmark quantises with, less what is left apart."""
    llama, chip = catalog.model("llama-3.3-70b"), catalog.chip("b200")
    blocks = llama.model_copy(update={"static_fp8": False})

    def spared_us(weights: str, tp: int) -> float:
        pool = Pool(role="aggregated", chip="b200", tp=tp)
        precision = Precision.model_validate({"weights": weights})
        of_blocks, of_tensors = (
            _decode(step_costs(one, chip, pool, precision, engine), 4, 1000)
            for one in (blocks, llama)
        )
        return 1e6 * (of_blocks - of_tensors) / llama.layers

    assert 4.0 < spared_us("fp8", 8) < 20.0
    assert spared_us("fp8", 1) < spared_us("fp8", 8)
    assert spared_us("nvfp4", 8) == spared_us("bf16", 8) == 0.0


def test_nothing_is_spared_on_chips_without_measured_quantisation() -> None:
    llama, chip = catalog.model("llama-3.3-70b"), catalog.chip("mi300x")
    blocks = llama.model_copy(update={"static_fp8": False})
    pool, precision = Pool(role="aggregated", chip="mi300x", tp=8), Precision(weights="fp8")
    told = [
        _decode(step_costs(one, chip, pool, precision, "vllm"), 4, 1000) for one in (blocks, llama)
    ]
    assert told[0] == told[1]
