"""Predictions of measured points: the simulator's own answers come back as errors of zero."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from objectives.validation import Validation, document, predict_all, read_points
from objectives.validation.points import THROUGHPUT
from objectives.validation.prediction import METRICS, predict
from objectives.validation.requests import requests_of
from tests.objectives.validation.rows import AGGREGATED, DISAGGREGATED, write_rows

COLUMN_OF = {
    "tpot": "tpot_ms_median",
    "ttft": "ttft_ms_median",
    THROUGHPUT: "output_tput_per_chip_tok_s",
}
OPEN = AGGREGATED | {"concurrency": "", "request_rate": 2.0, "config_id": "open"}
REPLICAS = AGGREGATED | {"decode_workers": 2, "num_chips": 8, "config_id": "replicas"}


@pytest.mark.parametrize("row", [AGGREGATED, DISAGGREGATED, OPEN, REPLICAS])
def test_what_the_simulator_says_is_scored_as_exact(
    tmp_path: Path, row: dict[str, object]
) -> None:
    (point,) = read_points(write_rows(tmp_path / "p.csv", [row])).points
    metrics = predict(point.setup)[2]
    told = row | {column: metrics[METRICS[name]] for name, column in COLUMN_OF.items()}
    file = read_points(write_rows(tmp_path / "q.csv", [told]))
    found = document(Validation(file, ("A",), predict_all(file.points)))["overall"]
    for name in COLUMN_OF:
        assert found[name]["mape_pct"] == pytest.approx(0, abs=1e-9)
        assert found[name]["interval_coverage"] == 1.0


def test_the_same_load_on_twice_the_replicas_is_faster_for_each_user(tmp_path: Path) -> None:
    rows = [AGGREGATED | {"concurrency": 64}, REPLICAS | {"concurrency": 64}]
    one, two = read_points(write_rows(tmp_path / "p.csv", rows)).points
    slow, fast = predict(one.setup)[2], predict(two.setup)[2]
    for name in ("tpot_p50_ms", "output_tokens_per_s_per_chip"):
        assert fast[name] < slow[name]


def test_users_above_what_decode_ranks_hold_wait_for_their_first_token(tmp_path: Path) -> None:
    """Three workers of one seat each: of six users half wait while another's answer is decoded."""
    layouts = {"prefill_tp": 1, "prefill_dp": 8, "prefill_ep": 8, "prefill_chips": 8}
    layouts |= {"decode_tp": 8, "decode_ep": 8, "decode_workers": 3, "decode_chips": 24}
    lengths = {"isl": 8192, "osl": 1024, "isl_mean": 7373, "osl_mean": 922}
    row = DISAGGREGATED | layouts | lengths | {"model": "DeepSeek-R1", "hardware": "GB200"}
    row |= {"engine": "trtllm", "num_chips": 32, "workload": str(AGGREGATED["workload"])}
    (point,) = read_points(write_rows(tmp_path / "p.csv", [row | {"concurrency": 6}])).points
    plan, _, metrics = predict(point.setup)
    assert (plan.pool("decode").max_num_seqs, plan.router) == (1, "round-robin")
    decoding_ms = 921 * metrics["tpot_p50_ms"]
    assert 0.75 * decoding_ms < metrics["ttft_p50_ms"] < 1.25 * decoding_ms


def test_lengths_are_drawn_as_the_workload_says(tmp_path: Path) -> None:
    rows = [AGGREGATED, AGGREGATED | {"workload": "random, fixed lengths", "config_id": "fixed"}]
    spread, fixed = (
        requests_of(p.setup) for p in read_points(write_rows(tmp_path / "p.csv", rows)).points
    )
    assert spread.input_tokens.mean() == pytest.approx(922, rel=0.02)
    assert spread.input_tokens.min() >= 0.8 * 1024
    assert spread.input_tokens.max() <= 1024 + 1
    assert set(fixed.input_tokens.tolist()) == {922}


def test_a_closed_loop_runs_all_its_rounds(tmp_path: Path) -> None:
    """Cut short, the first one, in which all prompts come at once, would weigh too much."""
    (point,) = read_points(
        write_rows(tmp_path / "p.csv", [AGGREGATED | {"concurrency": 3000}])
    ).points
    assert len(requests_of(point.setup).output_tokens) == 30_000


def test_recorded_lengths_spread_around_the_mean_of_the_row(tmp_path: Path) -> None:
    row = OPEN | {"workload": "ShareGPT, 4000 requests, open loop", "osl_mean": 200}
    (point,) = read_points(write_rows(tmp_path / "p.csv", [row])).points
    outputs = requests_of(point.setup).output_tokens
    assert outputs.mean() == pytest.approx(200, rel=0.05)
    assert outputs.max() <= 2.1 * 200
    assert outputs.std() == pytest.approx(0.6 * 200, rel=0.1)


def test_few_requests_have_the_mean_lengths_of_their_row(tmp_path: Path) -> None:
    told = "random, lengths uniform in [~0,1]x nominal; 10 requests only"
    row = AGGREGATED | {"isl_mean": 496, "osl_mean": 509, "workload": told}
    (point,) = read_points(write_rows(tmp_path / "p.csv", [row])).points
    sent = requests_of(point.setup)
    assert len(sent.input_tokens) == 10
    assert sent.input_tokens.mean() == pytest.approx(496, rel=0.01)
    assert sent.output_tokens.mean() == pytest.approx(509, rel=0.01)


def test_a_clocked_client_sends_at_even_intervals(tmp_path: Path) -> None:
    rows = [OPEN, OPEN | {"workload": "LMBenchmark sharegpt, open loop", "config_id": "clock"}]
    poisson, clocked = (
        np.diff(requests_of(p.setup).arrival_s)
        for p in read_points(write_rows(tmp_path / "p.csv", rows)).points
    )
    assert np.ptp(clocked) < 1e-9 < np.ptp(poisson)


def test_every_row_is_answered_left_out_or_refused_with_a_reason(tmp_path: Path) -> None:
    rows = [
        AGGREGATED,
        AGGREGATED | {"num_chips": 3, "config_id": "broken"},
        AGGREGATED | {"model": "No-Such-Model", "config_id": "model"},
        AGGREGATED | {"hardware": "ZX81", "config_id": "chip"},
        AGGREGATED | {"engine": "other", "config_id": "engine"},
        AGGREGATED | {"precision_weights": "fp3", "config_id": "format"},
        AGGREGATED | {"workload": "agentic multi-turn trace replay", "config_id": "replay"},
        AGGREGATED | {"mode": "unknown", "config_id": "mode"},
        AGGREGATED | {"spec_decode": "", "config_id": "speculation"},
        AGGREGATED | {"spec_decode": "mtp", "config_id": "no such head"},
        AGGREGATED | {"decode_tp": 1, "num_chips": 1, "model": "DeepSeek-R1", "config_id": "big"},
        AGGREGATED | {"num_chips": "", "config_id": "unread"},
    ]
    file = read_points(write_rows(tmp_path / "p.csv", rows))
    found = document(Validation(file, ("A",), predict_all(file.points)), ("engine",))
    overall = found["overall"]
    assert sum(found["left_out"].values()) == 1
    assert overall["answered"] == 1
    assert sum(overall["refused"].values()) == overall["n"] - 1 == 10
    assert "must be one of the catalogue's models (No-Such-Model)" in overall["refused"]
    assert "infeasible: memory" in overall["refused"]
    by_engine = {group["group"]["engine"]: group["n"] for group in found["groups"]}
    assert by_engine == {"vllm": 9, "other": 1}


def test_points_are_predicted_alike_whatever_stands_beside_them(tmp_path: Path) -> None:
    rows = [AGGREGATED, DISAGGREGATED]
    both = predict_all(read_points(write_rows(tmp_path / "p.csv", rows)).points)
    (alone,) = predict_all(read_points(write_rows(tmp_path / "q.csv", rows[1:])).points).predicted
    assert both.predicted[1].values == alone.values


def test_a_row_is_started_as_its_launch_script_can(tmp_path: Path) -> None:
    """vLLM's scripts for these models know tensor parallelism alone, whatever a row states."""
    layout = {"decode_tp": 1, "decode_dp": 4, "decode_ep": 4, "num_chips": 4, "concurrency": 16}
    row = AGGREGATED | layout | {"model": "MiniMax-M2.5", "hardware": "B200", "engine": "vllm"}
    (point,) = read_points(write_rows(tmp_path / "p.csv", [row])).points
    (pool,) = predict(point.setup)[0].pools
    assert (pool.tp, pool.dp, pool.ep) == (4, 1, 4)
