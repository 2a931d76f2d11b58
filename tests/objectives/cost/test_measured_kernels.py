"""Fitted kernels against sampled measured rows, by the command that prints them."""

from __future__ import annotations

from pathlib import Path

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
