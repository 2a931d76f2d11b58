"""Predicted step times against measured ones (Qwen3-32B in bf16, vLLM 0.20.1).

The source records prefill tokens, decoding requests and their context of single engine steps; the
chip is inferred to be B300.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from objectives.cost import RankBatch, StepCosts, step_seconds

Costs = Callable[..., StepCosts]


@pytest.fixture(scope="module")
def steps(data_dir: Path) -> pd.DataFrame:
    """Measured steps of the model, one row for each kind of batch."""
    table = pd.read_csv(data_dir / "measured" / "forward_pass_steps.csv")
    return table[table["model"] == "Qwen/Qwen3-32B"]


def _batch(row: Mapping[Hashable, Any]) -> RankBatch:
    decodes, chunks = int(row["decode_requests"]), int(row["prefill_requests"])
    contexts = (round(row["decode_kv_tokens"] / decodes),) * decodes if decodes else ()
    new, cached = int(row["prefill_tokens"]), int(row["prefill_kv_tokens"])
    return RankBatch(contexts, ((new // chunks, cached // chunks),) * chunks if chunks else ())


def _errors(steps: pd.DataFrame, costs: Costs, phase: str, tp: int) -> list[float]:
    """Predicted over measured, less one, of each step of a phase."""
    found = costs("qwen", "b300", tp=tp, max_num_seqs=128, max_num_batched_tokens=16384)
    rows = steps[(steps["tp"] == tp) & (steps["phase"] == phase)].to_dict("records")
    predicted = [1e3 * step_seconds(found, [_batch(row)])[0] for row in rows]
    return [ms / row["latency_ms"] - 1 for ms, row in zip(predicted, rows, strict=True)]


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_decode_steps(steps: pd.DataFrame, costs: Costs, tp: int) -> None:
    assert float(np.median(np.abs(_errors(steps, costs, "decode", tp)))) < 0.10


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_prefill_steps(steps: pd.DataFrame, costs: Costs, tp: int) -> None:
    assert float(np.median(np.abs(_errors(steps, costs, "context", tp)))) < 0.15


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_mixed_steps(steps: pd.DataFrame, costs: Costs, tp: int) -> None:
    assert float(np.median(np.abs(_errors(steps, costs, "mixed", tp)))) < 0.10
