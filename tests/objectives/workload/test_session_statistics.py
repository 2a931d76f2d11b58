"""Statistics of sessions, hit curves, distances, overflow, mixing and fitted presets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from objectives.workload import describe, fitting, prefix_hit_tokens, read_trace
from objectives.workload.distance import distance, preset_distances, quantities
from objectives.workload.fit import fitted_preset
from objectives.workload.mixing import mixed
from objectives.workload.presets import workload_of
from objectives.workload.reuse import hit_curve, ids_tell_prefixes
from objectives.workload.turns import hit_tokens
from objectives.workload.workload import Workload, broken_law
from spaces.documents import dump_yaml
from spaces.errors import InputError
from tests.objectives.workload.forests import forest

BLOCK = 10
chains = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=5), min_size=1, max_size=14)


def tree(paths: list[list[int]]) -> Workload:
    """Requests whose blocks are the nodes on a path through a tree."""
    nodes: dict[tuple[int, ...], int] = {}
    ids = [
        [nodes.setdefault(tuple(path[: depth + 1]), len(nodes)) for depth in range(len(path))]
        for path in paths
    ]
    counts = [len(path) for path in paths]
    return Workload(
        name="tree",
        arrival_s=np.arange(len(paths), dtype=float),
        input_tokens=np.array([BLOCK * count - 3 for count in counts]),
        output_tokens=np.ones(len(paths), dtype=np.int64),
        block_tokens=BLOCK,
        block_offsets=np.concatenate(([0], np.cumsum(counts))),
        block_ids=np.array([i for path in ids for i in path], dtype=np.int32),
    )


@given(chains)
def test_the_hit_curve_is_that_of_caches_of_every_size(paths: list[list[int]]) -> None:
    workload = tree(paths)
    sizes = [BLOCK * room for room in range(12)]
    assert ids_tell_prefixes(workload)
    assert hit_curve(workload, sizes) == [prefix_hit_tokens(workload, size) for size in sizes]


@given(chains)
def test_a_cache_that_forgets_nothing_gives_the_hits_of_all_requests(
    paths: list[list[int]],
) -> None:
    workload = tree(paths)
    assert int(hit_tokens(workload).sum()) == prefix_hit_tokens(workload)


def test_ids_that_do_not_tell_their_prefix_are_noticed() -> None:
    workload = tree([[0, 1], [1, 1]])
    assert not ids_tell_prefixes(replace(workload, block_ids=np.array([0, 1, 1, 0], np.int32)))


def test_sessions_of_the_forest_are_described() -> None:
    found = describe(forest())
    sessions, uncached = found["sessions"], found["uncached_by_kind"]
    assert sessions["count"] == 2
    assert sessions["turns"]["max"] == 5
    assert sessions["pause_s"]["append"]["mean"] == 2.0
    assert sessions["pauses_over_s"] == {"10": 0.0, "60": 0.0, "300": 0.0, "3600": 0.0}
    assert sessions["largest_context_tokens"]["mean"] == (260 + 300) / 2
    # Uncached: 400 of the first turns, 44 + 68 of appends, 72 of the user, 56 and 50.
    assert {kind: each["uncached_tokens"] for kind, each in uncached.items()} == {
        "first": 400,
        "append": 112,
        "user": 72,
        "compaction": 56,
        "subagent": 50,
    }
    assert sum(each["share"] for each in uncached.values()) == pytest.approx(1)


def test_single_requests_have_no_sessions_to_describe() -> None:
    assert describe(workload_of("fixed-1k1k", 50))["sessions"] is None


def test_distances_by_hand() -> None:
    one = {"turns": np.array([1.0, 2, 3, 4]), "pause_s": np.array([])}
    other = {"turns": np.array([3.0, 4, 5, 6]), "pause_s": np.array([])}
    assert distance(one, other) == {"turns": 0.5}
    assert distance(one, one) == {"turns": 0.0}
    assert distance(one, other | {"pause_s": np.array([1.0])}) == {"turns": 0.5, "pause_s": 1.0}


@pytest.mark.parametrize("name", ["agentic-coding", "code-completion", "fixed-1k8k"])
def test_a_preset_is_nearest_to_itself(name: str) -> None:
    found = preset_distances(workload_of(name, 1500, seed=7))
    nearest = next(iter(found.values()))["distance"]
    # Presets that differ in their limit alone are told apart no better than samples of one are.
    assert found[name]["distance"] < nearest + 0.02
    assert found[name]["distance"] < 0.1


def test_agents_are_told_from_chats(data_dir: Path) -> None:
    chats = read_trace(data_dir / "traces" / "burstgpt" / "BurstGPT_3.rows0-399.csv")
    assert next(iter(preset_distances(chats.workload))) == "chat"


@pytest.mark.parametrize(
    "name",
    [
        "burstgpt/BurstGPT_3.rows0-399.csv",
        "weka_agentx/traces",
        "azure/AzureLLMInferenceTrace_code.csv",
        "mooncake/synthetic_trace.rows0-1999.jsonl",
    ],
)
def test_a_fitted_preset_is_near_its_trace(data_dir: Path, tmp_path: Path, name: str) -> None:
    trace = read_trace(data_dir / "traces" / name).workload
    path = tmp_path / "fitted.yaml"
    path.write_text(dump_yaml(fitted_preset(trace, name)))
    fitted = workload_of(str(path), 2000, seed=1)
    assert broken_law(fitted) is None
    parts = distance(quantities(trace), quantities(fitted))
    nearest = next(iter(preset_distances(trace).values()))["distance"]
    assert float(np.mean(list(parts.values()))) < max(0.2, nearest)
    assert parts["output_tokens"] < 0.1


def test_inputs_too_long_are_dropped_cut_or_refused() -> None:
    workload = forest()
    kept, count = fitting(workload, 270)
    assert (count, len(kept)) == (2, 5)
    assert broken_law(kept) is None
    cut, count = fitting(workload, 270, "truncate")
    assert (count, len(cut)) == (2, 7)
    assert broken_law(cut) is None
    assert (cut.input_tokens + cut.output_tokens).max() == 270
    assert cut.input_tokens.tolist() == [100, 140, 265, 200, 50, 259, 120]
    assert hit_tokens(cut)[5] == 0
    with pytest.raises(InputError, match="2 longer ones of 7"):
        fitting(workload, 270, "error")


def test_a_request_whose_answer_alone_is_too_long_is_dropped_even_where_inputs_are_cut() -> None:
    cut, count = fitting(forest(), 20, "truncate")
    assert count == 7
    assert 20 not in cut.output_tokens.tolist()
    assert (cut.input_tokens + cut.output_tokens).max() <= 20


def test_mixed_workloads_keep_their_sessions_and_share_nothing() -> None:
    together = mixed("both", [forest(), forest()])
    assert broken_law(together) is None
    assert together.sessions == 4
    assert np.array_equal(
        np.sort(together.input_tokens), np.sort(np.tile(forest().input_tokens, 2))
    )
    assert hit_tokens(together).sum() == 2 * hit_tokens(forest()).sum()
    assert together.classes == forest().classes


def test_blocks_of_different_sizes_are_not_mixed() -> None:
    with pytest.raises(InputError, match="one size"):
        mixed("both", [forest(), replace(forest(), block_tokens=32)])
