"""The law of a step, against numbers computed by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from objectives.cost import RankBatch, StepCosts, step_seconds
from objectives.cost.step_costs import windowed_pairs


def _hand_made(stages: int = 1, window: int = 4) -> StepCosts:
    """One second is charged for each thing a step has, with a different power of ten."""
    one = np.ones(stages)
    return StepCosts(
        grid=np.array([0, 10, 100]),
        token_s=np.tile([0.0, 10.0, 100.0], (stages, 1)),
        expert_s=np.tile([0.0, 1e3 * 10, 1e3 * 100], (stages, 1)),
        graph_tokens=np.array([1, 1, 2, 4, 4]),
        eager_s=1e6 * one,
        launch_s=0.0 * one,
        decode_base_s=1e7 * one,
        decode_request_s=0.25 * one,
        decode_token_s=0.001 * one,
        decode_window_token_s=0.01 * one,
        prefill_base_s=1e9 * one,
        chunk_token_s=7e4 * one,
        pair_s=1.0 * one,
        window_pair_s=0.5 * one,
        read_s=100.0 * one,
        window_tokens=window,
        host_s=0.125,
        request_s=1e-5,
    )


def test_a_decode_step_sums_its_parts_and_reads_the_padded_size() -> None:
    (seconds,) = step_seconds(_hand_made(), [RankBatch((3, 5, 7))])
    padded, experts = 4.0, 3e3
    attention = 1e7 + 3 * 0.25 + 15 * 0.001 + (3 + 4 + 4) * 0.01
    assert seconds == pytest.approx(0.125 + 3e-5 + padded + experts + attention, abs=1e-9)


def test_a_chunk_takes_the_larger_of_pairs_and_reading() -> None:
    pairs, seen = 2 * 3 + 3, 4 + 4  # windowed: the queries see 4 (of 4) and 4 (of 5) keys
    (few,) = step_seconds(_hand_made(), [RankBatch((), ((2, 3),))])
    assert pairs + 0.5 * seen < 5 * 100
    assert few == pytest.approx(0.125 + 1e-5 + 2 + 2e3 + 1e6 + 1e9 + 2 * 7e4 + 5 * 100)
    (many,) = step_seconds(_hand_made(), [RankBatch((), ((60, 0),))])
    multiply = 60 * 61 / 2 + 0.5 * windowed_pairs(60, 0, 4)
    assert many == pytest.approx(
        0.125 + 1e-5 + 60 + 6e4 + 1e6 + 1e9 + 60 * 7e4 + max(multiply, 6000)
    )


def test_a_step_with_chunks_waits_for_its_launches_and_a_decode_step_does_not() -> None:
    plain = _hand_made(stages=2)
    costs = replace(plain, launch_s=np.array([3e9, 0.0]))
    decode, chunk = [RankBatch((3, 3))], [RankBatch((3,), ((2, 3),))]
    assert step_seconds(costs, decode) == step_seconds(plain, decode)
    first, second = step_seconds(costs, chunk)
    assert first == 3e9 + 0.125 + 2e-5
    assert second == step_seconds(plain, chunk)[1]  # its kernels take longer than launching them


def test_mixed_steps_are_not_padded() -> None:
    costs = _hand_made()
    (mixed,) = step_seconds(costs, [RankBatch((3, 3, 3), ((1, 0),))])
    (alone,) = step_seconds(costs, [RankBatch((3, 3), ((1, 0),))])
    one_more = 1e-5 + 1 + 1e3 + 0.25 + 3 * 0.001 + 3 * 0.01
    assert mixed - alone == pytest.approx(one_more, abs=1e-6)


def test_ranks_wait_for_the_slowest_and_share_the_experts() -> None:
    costs = _hand_made()
    (seconds,) = step_seconds(costs, [RankBatch((9,)), RankBatch((3, 3)), RankBatch()])
    slowest = 1e7 + max(0.25 + 0.009 + 0.04, 0.5 + 0.006 + 0.06)
    assert seconds == pytest.approx(0.125 + 3e-5 + 2 + 3e3 + slowest, abs=1e-9)


def test_host_time_is_the_first_stages() -> None:
    first, second = step_seconds(_hand_made(stages=2), [RankBatch((3,))])
    assert first - second == pytest.approx(0.125 + 1e-5)


def test_tables_are_kept_at_their_ends() -> None:
    costs = _hand_made()
    (at_end,) = step_seconds(costs, [RankBatch((), ((100, 0),))])
    (beyond,) = step_seconds(costs, [RankBatch((), ((100, 0), (1, 0)))])
    assert beyond - at_end == pytest.approx(1e-5 + 1e9 + 7e4 + 100)


@pytest.mark.parametrize(("new", "cached", "window"), [(5, 0, 3), (5, 2, 3), (5, 9, 3), (2, 0, 8)])
def test_windowed_pairs_count_each_query(new: int, cached: int, window: int) -> None:
    counted = sum(min(cached + query, window) for query in range(1, new + 1))
    assert windowed_pairs(new, cached, window) == counted
