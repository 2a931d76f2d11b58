"""Statistics of a workload: by hand, against brute force, and as published for real traces."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from objectives.workload import Workload, describe, prefix_hit_tokens, read_trace

BLOCK = 10

Chains = list[list[int]]
# Few ids, so that requests share prefixes, return to them and lose them.
chains = st.lists(
    st.lists(st.integers(0, 7), min_size=1, max_size=5, unique=True), min_size=1, max_size=12
)


def workload(
    arrival_s: list[float],
    input_tokens: list[int] | None = None,
    blocks: Chains | None = None,
) -> Workload:
    n = len(arrival_s)
    counts = [len(ids) for ids in blocks] if blocks else [0] * n
    return Workload(
        name="test",
        arrival_s=np.array(arrival_s, dtype=np.float64),
        input_tokens=np.array(input_tokens or [BLOCK * max(c, 1) for c in counts], dtype=np.int64),
        output_tokens=np.arange(1, n + 1, dtype=np.int64),
        block_tokens=BLOCK if blocks else 0,
        block_offsets=np.concatenate(([0], np.cumsum(counts))).astype(np.int64),
        block_ids=np.array([i for ids in blocks or [] for i in ids], dtype=np.int32),
    )


def cached(blocks: Chains) -> Workload:
    return workload([float(i) for i in range(len(blocks))], blocks=blocks)


def brute_force_hits(blocks: Chains, room: int) -> int:
    """Blocks hit when the cache holds the last `room` distinct blocks of the history of uses."""
    history: list[int] = []
    hits = 0
    for chain in blocks:
        recent = list(dict.fromkeys(reversed(history)))[:room]
        misses = [place for place, block in enumerate(chain) if block not in recent]
        hits += misses[0] if misses else len(chain)
        history += reversed(chain)
    return hits


@given(chains, st.integers(0, 9))
def test_lru_hits_equal_brute_force(blocks: Chains, room: int) -> None:
    assert prefix_hit_tokens(cached(blocks), room * BLOCK) == BLOCK * brute_force_hits(
        blocks, room
    )


@given(chains)
def test_larger_cache_never_hits_less_and_the_largest_hits_as_an_infinite_one(
    blocks: Chains,
) -> None:
    hits = [prefix_hit_tokens(cached(blocks), size) for size in range(0, 9 * BLOCK, BLOCK // 2)]
    assert hits == sorted(hits)
    assert hits[0] == 0
    assert hits[-1] == prefix_hit_tokens(cached(blocks))


def test_hit_is_the_leading_run_only() -> None:
    assert prefix_hit_tokens(cached([[0, 1, 2, 3], [0, 1, 4, 3]])) == 2 * BLOCK
    assert prefix_hit_tokens(cached([[0, 1, 2], [3, 1, 2]])) == 0


def test_hit_is_capped_at_the_input_where_the_last_block_is_partial() -> None:
    assert prefix_hit_tokens(workload([0, 1], [25, 25], [[0, 1, 2], [0, 1, 2]])) == 25


def test_tail_of_a_prefix_leaves_before_its_head() -> None:
    blocks = [[0, 1, 2], [3], [0, 1, 2]]
    assert prefix_hit_tokens(cached(blocks), 3 * BLOCK) == 2 * BLOCK


def test_blocks_of_one_request_do_not_hit_each_other() -> None:
    assert prefix_hit_tokens(cached([[0, 0, 0]])) == 0


def test_workload_without_prefix_information_has_no_reuse() -> None:
    bare = workload([0, 1])
    assert prefix_hit_tokens(bare) == 0
    assert describe(bare)["prefix_reuse"] is None


def test_statistics_by_hand() -> None:
    statistics = describe(workload([0, 1, 2, 5], [10, 20, 30, 40]))
    assert statistics["requests"] == 4
    assert statistics["span_s"] == 5
    assert statistics["rate_per_s"] == pytest.approx(3 / 5)
    assert statistics["input_tokens"] == {
        "mean": 25,
        "p50": 25,
        "p90": pytest.approx(37),
        "p99": pytest.approx(39.7),
        "max": 40,
    }
    assert statistics["output_tokens"]["max"] == 4
    # Gaps 1, 1, 3: mean 5/3, variance 8/9. Counts 1 1 1 0 0 1: mean 2/3, variance 2/9.
    assert statistics["interarrival_cv"] == pytest.approx((8 / 9) ** 0.5 / (5 / 3))
    assert statistics["dispersion_by_bin_s"]["1"] == pytest.approx(1 / 3)
    assert statistics["dispersion_by_bin_s"]["10"] is None


def test_requests_at_one_moment_have_no_rate_and_no_burstiness() -> None:
    statistics = describe(workload([0, 0, 0]))
    assert statistics["rate_per_s"] is None
    assert statistics["interarrival_cv"] is None
    assert set(statistics["dispersion_by_bin_s"].values()) == {None}
    assert statistics["distinct_arrival_times"] == 1


@given(st.lists(st.floats(0, 50), min_size=1, max_size=40))
def test_dispersion_equals_that_of_all_bins_counted(gaps: list[float]) -> None:
    arrival_s = [0.0, *np.cumsum(gaps).tolist()]
    statistics = describe(workload(arrival_s))
    for width, dispersion in statistics["dispersion_by_bin_s"].items():
        counts = np.bincount(np.array(arrival_s, dtype=np.float64).astype(int) // int(width))
        expected = counts.var() / counts.mean() if len(counts) > 1 else None
        assert dispersion == (None if expected is None else pytest.approx(expected, abs=1e-9))


def test_a_gap_of_centuries_does_not_fill_the_memory() -> None:
    assert describe(workload([0, 1e10]))["dispersion_by_bin_s"]["1"] == pytest.approx(1)


def test_statistics_are_json() -> None:
    statistics = describe(cached([[0, 1], [0, 2]]))
    assert json.loads(json.dumps(statistics, allow_nan=False)) == statistics


def test_reuse_names_tokens_and_cache_sizes() -> None:
    reuse = describe(cached([[0, 1], [0, 1], [0, 2]]))["prefix_reuse"]
    assert reuse["hit_tokens"] == 30
    assert reuse["input_tokens"] == 60
    assert reuse["hit_fraction"] == 0.5
    assert reuse["distinct_blocks"] == 3
    assert set(reuse["hit_by_cache_tokens"].values()) == {0.5}


@pytest.mark.parametrize(
    ("name", "hit_tokens", "input_tokens"),
    [
        ("conversation_trace.rows0-5999.jsonl", 27_034_743, 76_643_649),
        ("synthetic_trace.rows0-1999.jsonl", 8_317_098, 24_732_716),
    ],
)
def test_infinite_cache_hits_of_mooncake_traces(
    data_dir: Path, name: str, hit_tokens: int, input_tokens: int
) -> None:
    reuse = describe(read_trace(data_dir / "traces" / "mooncake" / name).workload)["prefix_reuse"]
    assert (reuse["hit_tokens"], reuse["input_tokens"]) == (hit_tokens, input_tokens)
    by_size = list(reuse["hit_by_cache_tokens"].values())
    assert by_size == sorted(by_size)
    assert by_size[-1] <= reuse["hit_fraction"] == hit_tokens / input_tokens


def test_azure_code_trace_has_its_published_statistics(data_dir: Path) -> None:
    path = data_dir / "traces" / "azure" / "AzureLLMInferenceTrace_code.csv"
    statistics = describe(read_trace(path).workload)

    def rounded(name: str) -> list[int]:
        return [round(statistics[name][key]) for key in ("mean", "p50", "p90", "p99", "max")]

    assert rounded("input_tokens") == [2048, 1469, 5188, 7436, 7437]
    assert rounded("output_tokens")[:3] == [28, 13, 55]
    assert statistics["output_tokens"]["p99"] == pytest.approx(252, abs=1)
    assert statistics["rate_per_s"] == pytest.approx(2.57, abs=0.005)
    assert statistics["interarrival_cv"] == pytest.approx(13.15, abs=0.05)
    dispersion = [round(statistics["dispersion_by_bin_s"][width]) for width in ("1", "10", "60")]
    assert dispersion == [13, 71, 161]
