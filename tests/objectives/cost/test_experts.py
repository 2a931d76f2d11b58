"""Distinct experts and imbalance, against published values and a simulated router."""

from __future__ import annotations

import numpy as np
import pytest

from objectives.cost.experts import (
    distinct_experts_of_slowest_rank,
    imbalance,
    rows_of_slowest_rank,
)
from objectives.cost.machine import machine_of
from objectives.cost.operators import routed_experts_s
from spaces import catalog
from spaces.model import MoeFfn
from spaces.plan import Pool

MOE = MoeFfn(layers=1, routed_experts=256, top_k=8, expert_intermediate_size=2048)
LOCAL_TOKENS = np.array([1.0, 4.0, 16.0, 64.0, 128.0])


def _drawn(tokens: int, ranks: int, draws: int = 60) -> tuple[float, float]:
    """Mean over draws of the largest count of rows and of distinct experts of any rank."""
    random = np.random.default_rng(7)
    rows, distinct = [], []
    for _ in range(draws):
        picks = random.random((tokens, 256)).argpartition(8, axis=1)[:, :8]
        counts = np.bincount(picks.ravel(), minlength=256).reshape(ranks, -1)
        rows.append(counts.sum(axis=1).max())
        distinct.append((counts > 0).sum(axis=1).max())
    return float(np.mean(rows)), float(np.mean(distinct))


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [(8, [1.56, 1.26, 1.13, 1.06, 1.05]), (32, [1.81, 1.37, 1.19, 1.09, 1.06])],
)
def test_imbalance_of_a_uniform_router(ranks: int, expected: list[float]) -> None:
    assert imbalance(MOE, LOCAL_TOKENS * ranks, ranks) == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("ranks", [2, 8, 32])
@pytest.mark.parametrize("tokens", [8, 32, 256])
def test_slowest_rank_agrees_with_a_simulated_router(ranks: int, tokens: int) -> None:
    rows, distinct = _drawn(tokens, ranks)
    asked = np.array([float(tokens)])
    assert rows_of_slowest_rank(MOE, asked, ranks)[0] == pytest.approx(rows, rel=0.05)
    assert distinct_experts_of_slowest_rank(MOE, asked, ranks)[0] == pytest.approx(
        distinct, rel=0.08
    )


def test_one_rank_has_everything() -> None:
    tokens = np.array([1.0, 16.0, 1e4])
    expected = [MOE.distinct_experts(count) for count in tokens]
    assert distinct_experts_of_slowest_rank(MOE, tokens, 1) == pytest.approx(expected)
    assert rows_of_slowest_rank(MOE, tokens, 1) == pytest.approx(tokens * 8)


def test_a_rank_never_reads_more_than_it_holds_or_was_picked() -> None:
    tokens = np.array([1.0, 2.0, 64.0, 1e5])
    for ranks in (1, 8, 64, 256):
        found = distinct_experts_of_slowest_rank(MOE, tokens, ranks)
        assert (found <= np.minimum(256 / ranks, tokens * 8) + 1e-9).all()
        assert (found >= np.array([MOE.distinct_experts(t) for t in tokens]) / ranks - 1e-9).all()


@pytest.mark.parametrize(
    ("experts", "top_k", "hidden", "inner", "expected"),
    [
        (8, 2, 6144, 16_384, 624),  # Mixtral-8x22B
        (16, 4, 6144, 10_752, 624),  # DBRX
        (32, 4, 8192, 8192, 1248),  # its Scaled-MoE
    ],
)
def test_experts_leave_the_memory_bound_where_megascale_infer_says(
    experts: int, top_k: int, hidden: int, inner: int, expected: int
) -> None:
    """Tokens b = (E / k) F / B (arXiv 2504.02263, section 4.1), on its A100 and in bf16.

    That is where moving the weights and multiplying them take as long; here each of the two goes
    at its achieved share of the peak, and narrow slices of experts are multiplied more slowly.
    """
    machine = machine_of(catalog.chip("a100"), "vllm")
    moe = MoeFfn(layers=1, routed_experts=experts, top_k=top_k, expert_intermediate_size=inner)
    alone = Pool(role="aggregated", chip="a100")
    tokens = np.array([4096.0, 8192.0])
    seconds = routed_experts_s(machine, moe, hidden, alone, "bf16", tokens)
    per_token_s = (seconds[1] - seconds[0]) / (tokens[1] - tokens[0])
    row, chip = machine.experts("bf16"), machine.chip
    weights_s = seconds[0] - tokens[0] * per_token_s - machine.launch_s(row.latency_us)
    narrowness = 1.0 + machine.overheads.grouped.half_width / inner
    slower = machine.sustained_flops("bf16") / chip.peak_flops("bf16") * row.compute / narrowness
    knee = weights_s / per_token_s / slower * row.memory
    assert experts / top_k * chip.peak_flops("bf16") / chip.hbm_bytes_per_s == pytest.approx(
        expected, rel=0.03
    )
    assert knee == pytest.approx(expected, rel=0.05)
