"""Fitted kernels against sampled measured rows, by the command that prints them."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np

from scripts.score_experts import CHIPS, LAYOUTS, MODELS, TOKENS, log_ratio
from scripts.score_operators import scored_rows


def test_shapes_nobody_fitted_are_met_within_five_percent(data_dir: Path) -> None:
    taken, scored, reasons = scored_rows(data_dir)
    assert taken == len(scored) + reasons.total()
    unseen = scored[scored["unseen"]]
    assert len(unseen) > 900
    assert unseen["error"].median() < 0.05
    by_operator = unseen.groupby("op")["error"].median()
    assert by_operator[["decode_attention", "prefill_attention"]].max() < 0.04
    assert by_operator.drop("experts").max() < 0.05
    assert by_operator["experts"] < 0.08


def test_the_law_of_routed_experts_follows_benchmarked_kernels() -> None:
    """From 128 tokens on; below, the benchmark's launches from the host are most of the time."""
    layouts = product(CHIPS["h200"], MODELS, LAYOUTS)
    logs = np.array([log_ratio("h200", *layout) for layout in layouts])[:, TOKENS >= 128]
    assert np.median(np.abs(logs)) < 0.2
    assert abs(np.median(logs)) < 0.15
