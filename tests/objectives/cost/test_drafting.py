"""What drafting and verifying cost: more tokens in a step, one reading of the KV."""

from __future__ import annotations

import numpy as np
import pytest

from objectives.cost import RankBatch, StepCosts, step_costs, step_seconds
from objectives.cost.build import graph_tokens
from spaces import catalog
from spaces.plan import Pool, Precision, Role
from spaces.speculation import Speculation


def costs(
    drafts: int, model: str = "deepseek-r1", role: Role = "aggregated", seats: int = 64
) -> StepCosts:
    layout = Pool(role=role, chip="h200", tp=8, max_num_seqs=seats, max_num_batched_tokens=8192)
    speculation = Speculation(depth=drafts, acceptance=(0.8,) * drafts) if drafts else None
    return step_costs(
        catalog.model(model), catalog.chip("h200"), layout, Precision(), "vllm", speculation
    )


def decode(found: StepCosts, batch: int, context: int = 4000) -> float:
    return sum(step_seconds(found, [RankBatch((context,) * batch)]))


def test_a_verified_batch_reads_the_experts_of_all_its_tokens() -> None:
    """One request with three drafts has four tokens; the draft layer sees four, then one twice."""
    plain, drafted = costs(0), costs(3)
    assert drafted.verified_tokens == 4
    one, four = np.interp([1, 4], plain.grid, plain.expert_s[0])
    assert four > 1.5 * one  # some thirty experts instead of eight
    expected = four + (four + 2 * one) / 58
    assert drafted.expert_s[0][4] == pytest.approx(expected, rel=1e-6)


def test_kv_is_read_once_for_all_tokens_of_a_request() -> None:
    plain, drafted = (costs(n, "qwen3-next-80b-a3b").decode_token_s[0] for n in (0, 1))
    layers = 12  # of full attention; the draft layer is one more
    assert drafted / plain == pytest.approx((layers + 1) / layers, rel=1e-6)


def test_latents_are_multiplied_with_every_token() -> None:
    """128 heads on a rank: one token is bound by reading, four by multiplying."""
    one, four = (
        step_costs(
            catalog.model("deepseek-r1"),
            catalog.chip("h200"),
            Pool(role="aggregated", chip="h200", dp=8, ep=8),
            Precision(),
            "vllm",
            speculation,
        ).decode_token_s[0]
        for speculation in (None, Speculation(depth=3))
    )
    assert 2.0 < four / one < 4.2


def test_graphs_are_captured_for_whole_requests() -> None:
    padded = graph_tokens(100, 3)
    assert (padded % 3 == 0).all()
    assert (padded >= 3 * np.arange(101)).all()
    assert padded[[1, 2, 3, 100]].tolist() == [3, 6, 9, 306]


def test_more_drafts_never_make_a_step_faster() -> None:
    for batch in (1, 8, 64):
        seconds = [decode(costs(drafts), batch) for drafts in range(5)]
        assert seconds == sorted(seconds)


def test_drafts_pay_at_small_batches_and_less_at_large_ones() -> None:
    """Speed-up = mean tokens of a step x T(batch) / T(batch with drafts)."""
    tokens = 1 + 3 * 0.8
    speedups = [
        tokens * decode(costs(0, seats=512), batch) / decode(costs(3, seats=512), batch)
        for batch in (1, 512)
    ]
    assert 1.5 < speedups[0] < tokens
    assert speedups[1] < speedups[0]


def test_a_prefill_pool_runs_the_draft_layer_over_its_prompts_and_drafts_nothing() -> None:
    plain, drafted = costs(0, role="prefill"), costs(3, role="prefill")
    assert drafted.verified_tokens == 1
    chunk = [RankBatch((), ((8192, 0),))]
    ratio = step_seconds(drafted, chunk)[0] / step_seconds(plain, chunk)[0]
    assert 1 < ratio < 1 + 2 / 61


def test_without_drafts_nothing_changes() -> None:
    for name in ("token_s", "expert_s", "decode_token_s", "graph_tokens"):
        assert (getattr(costs(0), name) == getattr(costs(0), name)).all()
    assert costs(0).verified_tokens == 1
