"""Logs of real vLLM servers, predicted from layer times measured on the same machines."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from objectives.simulator import simulate
from objectives.workload.load import OfferedLoad
from tests.objectives.simulator import vllm_logs
from tests.objectives.simulator.vllm_logs import Case

PLENTY = 30_000  # blocks of a 96 GB chip: these logs never fill it

CASES = (
    Case("RTX4090", "Llama-3.1-8B", 32, 256, 2587, hits=0.0188),
    Case("RTXPRO6000", "Llama-3.1-8B", 32, 128, PLENTY, hits=0.0759),
    Case("RTXPRO6000", "Qwen3-32B", 64, 128, PLENTY, hits=0.079, tp=2, hidden=5120),
    Case(
        "RTXPRO6000",
        "Qwen3-30B-A3B-Instruct-2507",
        48,
        128,
        PLENTY,
        hits=0.0304,
        dp=2,
        hidden=2048,
    ),
)
LIMITS = {"TPOT": 0.02, "end to end": 0.03, "TTFT": 0.14}


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.machine} {case.model}")
def test_means_are_those_of_the_log(case: Case, data_dir: Path) -> None:
    log = vllm_logs.requests(data_dir, case)
    workload = vllm_logs.workload(log, case.hits)
    load = OfferedLoad(workload.arrival_s, 0)
    records = simulate(vllm_logs.scenario(data_dir, case), workload, load).requests
    assert records.finished.all()
    hits = records.hit_tokens.sum() / records.input_tokens.sum()
    assert hits == pytest.approx(case.hits, rel=0.02)
    ttft_s = log["first_token_s"] - log["arrival_s"]
    tpot_s = (log["last_token_s"] - log["first_token_s"]) / (log["output_tokens"] - 1)
    e2e_s = log["last_token_s"] - log["arrival_s"]
    errors = {
        "TPOT": float(np.nanmean(records.tpot_s) / tpot_s.mean()) - 1,
        "end to end": float(records.e2e_s.mean() / e2e_s.mean()) - 1,
        "TTFT": float(records.ttft_s.mean() / ttft_s.mean()) - 1,
    }
    print(errors)  # the figures of docs/simulator.md: pytest -s
    for name, error in errors.items():
        assert abs(error) <= LIMITS[name], errors
