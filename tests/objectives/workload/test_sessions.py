"""Workloads as forests of sessions: defaults, selection, the parts of an input, Parquet."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from objectives.workload import (
    SyntheticSpec,
    Workload,
    generate,
    read_parquet,
    turn_tokens,
    write_parquet,
)
from objectives.workload.presets import workload_of
from objectives.workload.selection import selected
from objectives.workload.workload import COMPACTION, FIRST, KINDS, broken_law
from spaces.errors import InputError
from tests.objectives.workload.forests import forest


def same(one: Workload, other: Workload) -> None:
    for field in fields(Workload):
        a, b = getattr(one, field.name), getattr(other, field.name)
        assert np.array_equal(a, b), field.name
        if isinstance(a, np.ndarray):
            assert a.dtype == b.dtype, field.name


def test_requests_without_sessions_are_sessions_of_one_turn() -> None:
    spec = {"requests": 3, "input_tokens": 10, "output_tokens": 2}
    workload = generate(SyntheticSpec.model_validate(spec), seed=1)
    assert workload.session.tolist() == [0, 1, 2]
    assert workload.parent.tolist() == [-1] * 3
    assert workload.gap_s.tolist() == [0] * 3
    assert workload.kind.tolist() == [FIRST] * 3
    assert workload.class_id.tolist() == [0] * 3
    assert workload.sessions == 3
    assert broken_law(workload) is None


def test_the_forest_keeps_the_laws() -> None:
    assert broken_law(forest()) is None
    assert forest().sessions == 2


@pytest.mark.parametrize(
    ("change", "law"),
    [
        ({"parent": np.array([-1, 1, -1, 1, 3, 3, 2], np.int32)}, "come before"),
        ({"parent": np.array([-1, 0, -1, 2, 3, 3, 2], np.int32)}, "same session"),
        ({"gap_s": np.array([0, -1.0, 0, 0, 0, 0, 0])}, "gaps"),
        ({"kind": np.full(7, len(KINDS), np.int8)}, "kinds"),
        ({"class_id": np.full(7, 2, np.int32)}, "classes"),
        ({"arrival_s": np.array([0.0, 3, 2, 6, 8, 9, 12])}, "arrivals"),
        ({"output_tokens": np.array([20, 30, 5, 7, 0, 11, 13])}, "lengths"),
        ({"input_tokens": np.array([100, 140, 200, 200, 50, 260, 120])}, "blocks"),
    ],
)
def test_broken_laws_are_named(change: dict[str, Any], law: str) -> None:
    found = broken_law(replace(forest(), **change))
    assert found is not None
    assert law in found


def test_parts_of_an_input_add_up_and_follow_the_chain() -> None:
    workload = forest()
    parts = turn_tokens(workload)
    total = parts.kept + parts.previous_output + parts.external
    assert total.tolist() == workload.input_tokens.tolist()
    assert parts.extends.tolist() == [-1, 0, -1, 1, -1, 3, -1]
    assert parts.kept.tolist() == [0, 96, 0, 128, 0, 192, 64]
    # 40 tokens more after an answer of 20: 20 of them are the answer, 4 a partial block again.
    assert parts.previous_output.tolist() == [0, 20, 0, 30, 0, 7, 0]
    assert parts.external.tolist() == [100, 24, 300, 42, 50, 61, 56]


def test_without_blocks_a_longer_turn_extends_its_parent() -> None:
    bare = replace(
        forest(), block_tokens=0, block_offsets=np.zeros(8, int), block_ids=np.zeros(0, np.int32)
    )
    parts = turn_tokens(bare)
    assert parts.extends.tolist() == [-1, 0, -1, 1, -1, 3, -1]
    assert parts.kept.tolist() == [0, 100, 0, 140, 0, 200, 0]
    assert parts.external.tolist() == [100, 20, 300, 30, 50, 53, 120]


def test_a_turn_left_alone_waits_for_the_nearest_ancestor_that_is_kept() -> None:
    kept = selected(forest(), np.array([0, 2, 4, 5, 6]))
    assert broken_law(kept) is None
    assert kept.parent.tolist() == [-1, -1, 0, 0, 1]
    # 4 waited 0 s for 3, which waited 2 s for 1, which waited 1.5 s for 0.
    assert kept.gap_s.tolist() == [0, 0, 3.5, 6.0, 7]
    assert kept.session.tolist() == [0, 1, 0, 0, 1]


def test_a_turn_without_any_ancestor_left_starts_at_its_recorded_time() -> None:
    kept = selected(forest(), np.array([3, 6]))
    assert kept.parent.tolist() == [-1, -1]
    assert kept.gap_s.tolist() == [0, 0]
    assert kept.arrival_s.tolist() == [0, 6]
    assert kept.session.tolist() == [0, 1]
    assert kept.class_id.tolist() == [0, 1]


@settings(deadline=None)
@given(st.sets(st.integers(0, 6)))
def test_any_selection_keeps_the_laws(rows: set[int]) -> None:
    kept = selected(forest(), np.array(sorted(rows), dtype=np.int64))
    assert broken_law(kept) is None
    assert len(kept) == len(rows)


def test_parquet_gives_back_the_same_workload(tmp_path: Path) -> None:
    path = tmp_path / "workload.parquet"
    write_parquet(forest(), path)
    same(read_parquet(path), forest())


def test_parquet_without_prefix_information_or_requests(tmp_path: Path) -> None:
    path = tmp_path / "workload.parquet"
    spec = {"requests": 3, "input_tokens": 10, "output_tokens": 2}
    for workload in (
        generate(SyntheticSpec.model_validate(spec), seed=1),
        selected(forest(), np.zeros(0, dtype=np.int64)),
    ):
        write_parquet(workload, path)
        same(read_parquet(path), workload)


def test_the_same_workload_gives_the_same_file(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_parquet(forest(), tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_parquet_that_is_no_workload_is_refused(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    other = tmp_path / "other.parquet"
    pq.write_table(pa.table({"a": [1]}), other)
    text = tmp_path / "text.parquet"
    text.write_text("no parquet")
    for path, rule in (
        (other, "version"),
        (text, "cannot be read"),
        (tmp_path / "none", "must exist"),
    ):
        with pytest.raises(InputError, match=rule) as caught:
            read_parquet(path)
        assert caught.value.where == str(path)


def test_parquet_with_a_broken_law_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "broken.parquet"
    write_parquet(replace(forest(), gap_s=np.full(7, -1.0)), path)
    with pytest.raises(InputError, match="gaps"):
        read_parquet(path)


@pytest.mark.parametrize("limit", [20_000, 30_000, 60_000])
def test_short_contexts_keep_no_more_than_there_was(limit: int) -> None:
    workload = workload_of("agentic-coding", 300, 1, {"context_limit_tokens": limit})
    assert broken_law(workload) is None
    # Numbered densely from 0, so that each number up to the largest is some block's.
    assert len(np.unique(workload.block_ids)) == workload.block_ids.max() + 1
    compacted = np.flatnonzero(workload.kind == COMPACTION)
    assert len(compacted)
    assert (workload.input_tokens[compacted] <= limit / 2).all()
