"""Predicted time per output token against measured serving points: a sanity check, not a fit.

Taken are grade-A closed loops of one replica without speculation or prefix hits, of model and chip
pairs whose shapes stand in conftest. No constant was fitted to a row or a pair.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from objectives.cost import RankBatch, StepCosts, step_seconds
from spaces.plan import Precision

Costs = Callable[..., StepCosts]

MODELS = {"DeepSeek-R1/V3": "deepseek", "Llama-3.x-70B": "llama", "gpt-oss-120b": "gpt-oss"}
CHIPS = ["B200", "H100", "H200", "MI355X"]
LOAD = ["model_family", "hardware", "engine", "precision_weights"]
LAYOUT = ["decode_tp", "decode_dp", "decode_ep"]
SHAPE = ["concurrency", "isl_mean", "osl_mean"]


@pytest.fixture(scope="module")
def points(data_dir: Path) -> pd.DataFrame:
    """One row for each operating point, the median over repeats and software versions."""
    wanted = [*LOAD, *LAYOUT, *SHAPE, "num_chips", "tpot_ms_median"]
    filters = ["quality", "mode", "spec_decode", "prefix_hit"]
    table = pd.read_csv(
        data_dir / "measured" / "serving_points.csv", usecols=[*wanted, *filters], low_memory=False
    )
    plain = (table["quality"] == "A") & (table["mode"] == "agg") & (table["spec_decode"] == "none")
    plain &= table["prefix_hit"].fillna(0) == 0
    plain &= table["model_family"].isin(list(MODELS)) & table["hardware"].isin(CHIPS)
    found = table[plain].dropna(subset=[*SHAPE, "decode_tp", "tpot_ms_median"]).copy()
    found[LAYOUT] = found[LAYOUT].fillna(1).astype(int)
    one_replica = found["num_chips"] == found["decode_tp"] * found["decode_dp"]
    same = found[one_replica].groupby([*LOAD, *LAYOUT, *SHAPE], as_index=False)
    return same[["tpot_ms_median"]].median()


def _precision(row: Mapping[Hashable, Any]) -> Precision:
    """Recipes on Blackwell and CDNA 4 keep KV in fp8; KV formats are hardly ever stated."""
    weights = {"fp8": "fp8", "bf16": "bf16", "fp4": "nvfp4"}[str(row["precision_weights"])]
    native = row["model_family"] == "gpt-oss-120b"
    kv = "bf16" if row["hardware"] in ("H100", "H200") or weights == "bf16" else "fp8"
    return Precision.model_validate({"weights": "native" if native else weights, "kv": kv})


def _tpot_s(costs: StepCosts, ranks: int, concurrency: int, new: int, out: int) -> float:
    """Fixed point of a closed loop: a decode step of the requests not in prefill, and a share of
    the other requests' prefills."""
    prompt = [RankBatch((), ((new, 0),)), *[RankBatch()] * (ranks - 1)]
    prefill, tpot = sum(step_seconds(costs, prompt)), 0.01
    others = (concurrency - 1) / concurrency
    for _ in range(8):
        decoding = concurrency * out * tpot / (out * tpot + prefill)
        batch = max(1, round((1 + decoding * others) / ranks))
        step = sum(step_seconds(costs, [RankBatch((new + out // 2,) * batch)] * ranks))
        tpot = step + prefill * decoding * others / out / ranks
    return tpot


@pytest.fixture(scope="module")
def scored(points: pd.DataFrame, costs: Costs) -> pd.DataFrame:
    """The points with their relative errors."""
    errors = []
    for row in points.to_dict("records"):
        ranks, concurrency = int(row["decode_dp"]), int(row["concurrency"])
        found = costs(
            MODELS[row["model_family"]],
            row["hardware"].lower(),
            engine=row["engine"],
            precision=_precision(row),
            tp=int(row["decode_tp"]),
            dp=ranks,
            ep=int(row["decode_ep"]),
            max_num_seqs=max(512, concurrency),
            max_num_batched_tokens=16384,
        )
        predicted = _tpot_s(found, ranks, concurrency, int(row["isl_mean"]), int(row["osl_mean"]))
        errors.append(1e3 * predicted / row["tpot_ms_median"] - 1)
    return points.assign(error=errors, size=np.abs(errors))


def test_the_median_error_is_small(scored: pd.DataFrame) -> None:
    assert len(scored) > 300
    assert scored["size"].median() < 0.15
    assert abs(scored["error"].median()) < 0.15


def test_no_pair_of_model_and_chip_is_far_off(scored: pd.DataFrame) -> None:
    print(scored[["size", "error"]].describe(percentiles=[0.5, 0.9]))
    print(f"within 20 %: {(scored['size'] < 0.2).mean():.0%}")
    print(scored.groupby(["model_family", "hardware"])[["size", "error"]].median())
    pairs = scored.groupby(["model_family", "hardware"])["size"].median()
    assert len(pairs) >= 6
    assert pairs.median() < 0.15
    assert pairs.max() < 0.35


def test_choices_are_ranked_as_measured(scored: pd.DataFrame) -> None:
    """What an optimizer needs: of two points of a pair, which is slower."""
    predicted = scored.assign(ms=scored["tpot_ms_median"] * (1 + scored["error"]))
    for _, pair in predicted.groupby(["model_family", "hardware"]):
        ranks = pair[["tpot_ms_median", "ms"]].rank()
        assert float(np.corrcoef(ranks.to_numpy().T)[0, 1]) > 0.85
