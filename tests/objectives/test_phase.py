"""Metrics as InferenceX defines them, against its own examples and sums by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from objectives.measures import request_metrics, speeds
from objectives.metrics import METRICS
from objectives.phase import phase_metrics, theoretical_hit_fraction
from objectives.workload.load import OfferedLoad
from objectives.workload.turns import hit_tokens
from tests.objectives.simulator.worlds import workload_of
from tests.objectives.test_measures import run
from tests.objectives.workload.forests import forest


def test_interactivity_is_that_of_inferencex() -> None:
    """The figures of test_process_agentic_result.py of SemiAnalysisAI/InferenceX."""
    found = speeds("intvty", np.array([0.01, 0.02, 0.1]))
    wanted = {"p90": 11.90476, "p75": 16.66667, "p50": 50.0, "mean": 23.07692}
    assert {name: found[f"intvty_{name}"] for name in wanted} == pytest.approx(wanted, rel=1e-6)
    assert found["intvty_std"] == pytest.approx(np.std([100.0, 50.0, 10.0]))


def test_the_phase_runs_from_the_first_measured_request_to_the_last_end() -> None:
    arrivals = [0.0, 1.0, 2.0]
    load = OfferedLoad(np.array(arrivals), 0, measured=np.array([False, True, True]))
    result = run(load, [50, 10, 20], arrivals)
    metrics = phase_metrics(result, workload_of(arrivals, [5] * 3, [50, 10, 20]))
    # From 1 s to the end of the third at 2.2 s.
    assert metrics["phase_output_tokens_per_s"] == pytest.approx(30 / 1.2)
    assert metrics["phase_input_tokens_per_s"] == pytest.approx(10 / 1.2)
    assert metrics["phase_total_tokens_per_s"] == pytest.approx(40 / 1.2)
    assert (metrics["output_tokens_mean"], metrics["output_tokens_std"]) == (15, 5)
    assert metrics.keys() <= METRICS.keys()


def test_requests_are_counted_in_windows_of_a_second_from_the_first_end() -> None:
    arrivals = [0.0, 0.2, 0.4, 1.3, 3.6]
    result = run(OfferedLoad(np.array(arrivals), 0), [10] * 5, arrivals)
    metrics = phase_metrics(result, workload_of(arrivals, [5] * 5, [10] * 5))
    # Ends at 0.1, 0.3, 0.5, 1.4 and 3.7 s: 3, 1 and 0 in the three whole windows.
    assert metrics["qps_mean"] == pytest.approx(4 / 3)
    assert metrics["qps_p50"] == 1
    assert metrics["qps_std"] == pytest.approx(np.std([3, 1, 0]))


def test_e2e_normalized_interactivity_has_the_first_token_in_it() -> None:
    arrivals = [0.0] * 5
    metrics = request_metrics(run(OfferedLoad(np.zeros(5), 0), [10] * 5, arrivals), None)
    # One seat: the k-th request ends after k times 0.1 s, each of 10 tokens.
    seconds_per_token = np.array([0.01, 0.02, 0.03, 0.04, 0.05])
    expected = 1 / np.percentile(seconds_per_token, 90)
    assert metrics["e2e_tokens_per_s_per_user_p90"] == pytest.approx(expected)
    assert metrics["tokens_per_s_per_user_p90"] == pytest.approx(100)


def test_theoretical_hits_are_those_of_an_endless_cache() -> None:
    workload = forest()
    blocks = -(-hit_tokens(workload) // workload.block_tokens)
    assert theoretical_hit_fraction(workload) == blocks.sum() / len(workload.block_ids) > 0
    fresh = replace(workload, block_ids=np.arange(len(workload.block_ids), dtype=np.int32))
    assert theoretical_hit_fraction(fresh) == 0
