"""Replays of conversations: histories are found in the cache where they all fit, else none is."""

from __future__ import annotations

from pathlib import Path

import pytest

from objectives.validation import read_points
from objectives.validation.deployment import deployed
from objectives.validation.history import with_cached_history
from objectives.validation.points import Setup
from objectives.validation.prediction import predict
from objectives.validation.published_runs import published_runs
from tests.objectives.validation.rows import AGGREGATED, write_rows

REPLAY = AGGREGATED | {
    "workload": "LMBenchmark sharegpt, open loop",
    "concurrency": "",
    "request_rate": 1.0,
    "isl_mean": 1000,
    "osl_mean": 200,
    "prefix_hit": "",
}


def setup_of(tmp_path: Path, **changes: object) -> Setup:
    (point,) = read_points(write_rows(tmp_path / "p.csv", [REPLAY | changes])).points
    return point.setup


def hit_of(setup: Setup) -> float:
    plan, site = deployed(setup, 3000)
    return with_cached_history(setup, plan, site).prefix_hit


def test_all_but_the_question_is_cached_where_all_conversations_fit(tmp_path: Path) -> None:
    (sent,) = published_runs().conversations
    assert hit_of(setup_of(tmp_path)) == pytest.approx(1 - sent.question_tokens / 1000)


@pytest.mark.parametrize(
    "changes",
    [
        {"isl_mean": 30000},  # more than HBM holds
        {"workload": "random, fixed lengths"},
    ],
)
def test_else_nothing_is(tmp_path: Path, changes: dict[str, object]) -> None:
    assert hit_of(setup_of(tmp_path, **changes)) == 0


def test_host_memory_keeps_what_hbm_does_not(tmp_path: Path) -> None:
    (sent,) = published_runs().conversations
    offloading = setup_of(tmp_path, isl_mean=30000, notes="lmcache-llm-d-70b; TP2")
    assert hit_of(offloading) == pytest.approx(1 - sent.question_tokens / 30000)


def test_a_stated_share_is_kept(tmp_path: Path) -> None:
    assert hit_of(setup_of(tmp_path, prefix_hit=0.25)) == 0.25


def test_cached_histories_shorten_the_wait_for_the_first_token(tmp_path: Path) -> None:
    found = predict(setup_of(tmp_path))[2]
    computed = predict(setup_of(tmp_path, workload="random, lengths of sharegpt"))[2]
    assert found["prefix_hit_fraction"] > 0.8 > computed["prefix_hit_fraction"] == 0
    assert found["ttft_p50_ms"] < computed["ttft_p50_ms"]
