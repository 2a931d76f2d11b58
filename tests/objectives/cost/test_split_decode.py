"""Costs of decode on two pools: who computes what, and what goes between them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from objectives.cost import RankBatch, StepCosts, split_step_costs, step_costs, step_seconds
from objectives.cost.machine import machine_of
from objectives.cost.operators import routed_experts_s
from spaces import catalog
from spaces.chip import ChipSpec, Fact
from spaces.plan import Pool, Precision
from spaces.precision import ComputeDtype
from spaces.speculation import Speculation

MODEL = catalog.model("deepseek-v3")
ATTENTION = Pool(role="decode-attention", chip="h200", dp=8, max_num_seqs=64)
EXPERTS = Pool(role="decode-experts", chip="h200", tp=8, ep=8)


def costs(
    attention: Pool = ATTENTION,
    experts: Pool = EXPERTS,
    chip: ChipSpec | None = None,
    other: ChipSpec | None = None,
) -> StepCosts:
    one, two = chip or catalog.chip(attention.chip), other or catalog.chip(experts.chip)
    return split_step_costs(MODEL, (attention, one), (experts, two), Precision(), "vllm", 3)


def drafting(depth: int) -> StepCosts:
    return split_step_costs(
        MODEL,
        (ATTENTION, catalog.chip("h200")),
        (EXPERTS, catalog.chip("h200")),
        Precision(),
        "vllm",
        3,
        Speculation(depth=depth, acceptance=(0.8,) * depth) if depth else None,
    )


def with_figure(chip: ChipSpec, key: str, factor: float) -> ChipSpec:
    told = getattr(chip, key)
    name = f"{chip.name}-{key}-{factor}"
    return chip.model_copy(
        update={key: Fact(value=told.value * factor, source="made up"), "name": name}
    )


def test_attention_has_no_experts_and_experts_nothing_else() -> None:
    apart = costs()
    whole = step_costs(
        MODEL,
        catalog.chip("h200"),
        Pool(role="decode", chip="h200", dp=8, ep=8),
        Precision(),
        "vllm",
    )
    np.testing.assert_allclose(
        np.interp(64, apart.grid, apart.expert_s[0]), np.interp(64, whole.grid, whole.expert_s[0])
    )
    assert np.interp(64, apart.grid, apart.token_s[0]) < np.interp(
        64, whole.grid, whole.token_s[0]
    )
    assert apart.decode_token_s == whole.decode_token_s


def test_bytes_are_those_of_the_copies_over_the_slower_end() -> None:
    """8 of 256 experts on 8 ranks: 8 (1 - (7/8)^8) = 5.25 ranks a token; fp8 there, bf16 back."""
    apart, tokens = costs(), 512.0
    copies = 8 * (1 - (7 / 8) ** 8)
    line = 8 * 50e9 * 0.94  # 400 Gb/s for each of eight chips
    back = 58 * tokens * copies * 7168 * 2 / line
    assert apart.split is not None
    assert np.interp(tokens, apart.grid, apart.split.line_s) == pytest.approx(back, rel=0.01)
    both = np.interp(tokens, apart.grid, apart.split.exchange_s)
    assert both == pytest.approx(1.5 * back + 58 * 2 * 30e-6, rel=0.01)


def test_more_chips_at_the_thin_end_widen_the_line() -> None:
    thin, wide = costs(), costs(ATTENTION.model_copy(update={"dp": 16}))
    even = costs(
        ATTENTION.model_copy(update={"dp": 16}), EXPERTS.model_copy(update={"tp": 16, "ep": 8})
    )
    at = 256.0
    lines = []
    for found in (thin, wide, even):
        assert found.split is not None
        lines.append(float(np.interp(at, found.grid, found.split.line_s)))
    assert lines[1] == pytest.approx(lines[0], rel=0.01)
    # Twice the chips, but each expert is cut in two and both halves get the token.
    assert lines[2] == pytest.approx(lines[0], rel=0.01)


@pytest.mark.parametrize("key", ["scaleout_gb_per_s", "hbm_gb_per_s"])
@pytest.mark.parametrize("side", ["chip", "other"])
def test_better_chips_on_either_side_are_never_slower(key: str, side: str) -> None:
    chip = catalog.chip("h200")
    plain = costs()
    better = costs(**{side: with_figure(chip, key, 2.0)})  # type: ignore[arg-type]
    assert plain.split is not None
    assert better.split is not None
    assert (better.expert_s <= plain.expert_s * (1 + 1e-9)).all()
    assert (better.token_s <= plain.token_s * (1 + 1e-9)).all()
    assert (better.split.exchange_s <= plain.split.exchange_s * (1 + 1e-9)).all()


def test_a_rack_that_holds_both_pools_exchanges_over_its_fabric() -> None:
    rack = costs(
        ATTENTION.model_copy(update={"chip": "gb200"}),
        EXPERTS.model_copy(update={"chip": "gb200"}),
    )
    nodes = costs()
    assert rack.split is not None
    assert nodes.split is not None
    assert rack.split.line_s[-1] < 0.1 * nodes.split.line_s[-1]


def test_unlike_chips_each_do_their_part() -> None:
    """Experts on MI355X, attention on H200: each side has its own chip's costs."""
    mixed = costs(experts=EXPERTS.model_copy(update={"chip": "mi355x"}))
    assert mixed.expert_s[0, -1] < costs().expert_s[0, -1]
    np.testing.assert_array_equal(mixed.token_s, costs().token_s)


def test_each_pass_of_the_draft_layer_goes_to_the_experts_too() -> None:
    """58 layers with experts, then one pass over all tokens and one for each further draft."""
    plain, one, three = (drafting(depth) for depth in (0, 1, 3))
    assert plain.split is not None and one.split is not None and three.split is not None
    assert [found.split.layers for found in (plain, one, three) if found.split] == [58, 59, 61]
    tokens = 512.0
    whole, first, all_passes = (
        float(np.interp(tokens, found.grid, found.split.line_s))
        for found in (plain, one, three)
        if found.split
    )
    assert first == pytest.approx(whole * 59 / 58, rel=1e-2)
    # Further passes bring one token of each request: a quarter of the tokens of the step.
    assert all_passes == pytest.approx(whole * (59 + 2 / 4) / 58, rel=1e-2)
    assert (np.interp(tokens, one.grid, one.expert_s[0])) > np.interp(
        tokens, plain.grid, plain.expert_s[0]
    )
    assert three.verified_tokens == 4


def test_who_asks_does_not_change_how_uneven_the_experts_are_asked() -> None:
    """One draw for all ranks: 512 tokens are 512 tokens, of 4 attention ranks or of 16."""
    few, many = (costs(ATTENTION.model_copy(update={"dp": dp})) for dp in (4, 16))
    for tokens in (16.0, 512.0):
        told = [float(np.interp(tokens, one.grid, one.expert_s[0])) for one in (few, many)]
        assert told[0] == pytest.approx(told[1], rel=0.01)


@pytest.mark.parametrize("tokens", [32, 512])
def test_the_slowest_rank_of_one_draw_sets_the_layer(tokens: int) -> None:
    """A router drawn once for a layer: every rank gets its part of it, and the last one counts.

    A rank's seconds are those of its distinct experts and rows, which come from the same draw.
    """
    chip, moe = catalog.chip("h200"), MODEL.moe
    assert moe is not None
    machine, ranks = machine_of(chip, "vllm"), 8
    alone = EXPERTS.model_copy(update={"tp": 1, "ep": 1})

    def seconds(distinct: float, rows: float) -> float:
        """One rank's layer: affine in both, from the law of a chip that holds all experts."""
        one, two = (
            float(routed_experts_s(machine, moe, 7168, alone, "fp8", np.array([t]))[0])
            for t in (4096.0, 8192.0)
        )
        of_row = (two - one) / (4096.0 * moe.top_k)  # all 256 experts are read either way
        fixed = float(machine.launch_s(machine.experts("fp8").latency_us))
        of_expert = (one - fixed - 4096.0 * moe.top_k * of_row) / moe.routed_experts
        return fixed + distinct * of_expert + rows * of_row

    random = np.random.default_rng(3)
    slowest = []
    for _ in range(40):
        picks = random.random((tokens, 256)).argpartition(8, axis=1)[:, :8]
        counts = np.bincount(picks.ravel(), minlength=256).reshape(ranks, -1)
        own = [seconds(float((one > 0).sum()), float(one.sum())) for one in counts]
        slowest.append(max(own))
    pool = EXPERTS.model_copy(update={"tp": ranks, "ep": ranks})
    told = routed_experts_s(machine, moe, 7168, pool, "fp8", np.array([float(tokens)]))
    assert float(told[0]) == pytest.approx(np.mean(slowest), rel=0.05)


CONTEXT = 4000.0


def seconds_a_step(costs: StepCosts, ranks: int, requests: int) -> float:
    """A decode step of so many requests on each rank."""
    return sum(step_seconds(costs, [RankBatch((CONTEXT,) * requests, ())] * ranks))


@pytest.mark.parametrize(
    ("name", "chip_name", "weights"),
    [("deepseek-v3", "h200", "fp8"), ("qwen3-235b-a22b", "h200", "bf16")],
)
def test_experts_apart_gain_most_below_the_knee_and_nothing_beyond_it(
    name: str, chip_name: str, weights: ComputeDtype
) -> None:
    """MegaScale-Infer (arXiv 2504.02263): experts apart serve a larger batch together.

    That saves reads of weights, up to the batch from which on experts compute as long as they
    read: peak FLOP/s over bandwidth, times bytes per weight over two FLOPs, tokens on each expert.
    Beyond that as many chips of one kind are better kept together, where all do both.
    """
    model, chip = catalog.model(name), catalog.chip(chip_name)
    assert model.moe is not None
    width = 1 if weights == "fp8" else 2
    knee = chip.peak_flops(weights) / chip.hbm_bytes_per_s * width / 2
    many: dict[str, Any] = {"chip": chip_name, "max_num_seqs": 8192}
    together = step_costs(
        model, chip, Pool(role="decode", dp=8, ep=8, **many), Precision(), "vllm"
    )
    experts = Pool(role="decode-experts", chip=chip_name, tp=8, ep=8)
    gains: dict[float, float] = {}
    for attention_chips in (8, 16, 24):
        attention = Pool(role="decode-attention", dp=attention_chips, **many)
        for parts in (1, 2, 3):
            apart = split_step_costs(
                model, (attention, chip), (experts, chip), Precision(), "vllm", parts
            )
            for requests in (6, 48, 96, 192, 768, 3072):  # on each chip, either way
                of_rank = requests * (attention_chips + 8) // attention_chips
                gain = seconds_a_step(together, 8, requests) / seconds_a_step(
                    apart, attention_chips, of_rank
                )
                on_expert = 8 * requests * model.moe.top_k / model.moe.routed_experts
                gains[on_expert] = max(gains.get(on_expert, 0.0), gain)
    assert max(gains, key=lambda batch: gains[batch]) < knee < max(gains)
    assert all(gain < 1 for batch, gain in gains.items() if batch > knee)
