"""Mooncake JSONL: units, block ids, and the rows that must not be misread."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from objectives.workload import read_trace
from spaces.errors import InputError

GOOD: dict[str, Any] = {
    "timestamp": 27_000,
    "input_length": 1025,
    "output_length": 52,
    "hash_ids": [46, 47, 2333],
}


def written(tmp_path: Path, *rows: dict[str, Any]) -> Path:
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def refusal(path: Path) -> InputError:
    with pytest.raises(InputError) as caught:
        read_trace(path)
    return caught.value


def test_milliseconds_become_seconds_from_the_first_request(tmp_path: Path) -> None:
    path = written(tmp_path, GOOD, GOOD | {"timestamp": 30_500}, GOOD | {"timestamp": 30_500.25})
    assert read_trace(path).workload.arrival_s.tolist() == [0, 3.5, 3.50025]


def test_epoch_timestamps_keep_their_milliseconds(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        GOOD | {"timestamp": 1_764_000_000_123},
        GOOD | {"timestamp": 1_764_000_000_124},
    )
    assert read_trace(path).workload.arrival_s.tolist() == [0, 0.001]


def test_hash_ids_are_numbered_densely_in_order_of_appearance(tmp_path: Path) -> None:
    large = 2**64 - 1
    rows = [GOOD, GOOD | {"hash_ids": [46, large, -5]}, GOOD | {"hash_ids": [large, 46, 7]}]
    workload = read_trace(written(tmp_path, *rows)).workload
    assert workload.block_tokens == 512
    assert workload.block_offsets.tolist() == [0, 3, 6, 9]
    assert workload.block_ids.tolist() == [0, 1, 2, 0, 3, 4, 3, 0, 5]
    assert workload.block_ids.dtype == np.int32


@pytest.mark.parametrize("without", [{}, {"hash_ids": None}])
def test_without_hash_ids_there_is_no_prefix_information(
    tmp_path: Path, without: dict[str, Any]
) -> None:
    bare = {key: GOOD[key] for key in ("timestamp", "input_length", "output_length")} | without
    workload = read_trace(written(tmp_path, bare, bare)).workload
    assert workload.block_tokens == 0
    assert len(workload.block_ids) == 0
    assert workload.block_offsets.tolist() == [0, 0, 0]


@pytest.mark.parametrize("first_has_ids", [True, False])
def test_hash_ids_in_some_rows_only_are_refused(tmp_path: Path, first_has_ids: bool) -> None:
    bare = {key: value for key, value in GOOD.items() if key != "hash_ids"}
    rows = [GOOD, bare] if first_has_ids else [bare, GOOD]
    path = written(tmp_path, *rows)
    error = refusal(path)
    assert (error.where, error.key) == (f"{path}:2", "hash_ids")


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"input_length": -1}, "input_length"),
        ({"input_length": 1025.5}, "input_length"),
        ({"input_length": "1025"}, "input_length"),
        ({"input_length": True}, "input_length"),
        ({"input_length": None}, "input_length"),
        ({"input_length": 10**30}, "input_length"),
        ({"output_length": -1}, "output_length"),
        ({"output_length": 0.5}, "output_length"),
        ({"timestamp": "27000"}, "timestamp"),
        ({"timestamp": -1}, "timestamp"),
        ({"timestamp": True}, "timestamp"),
        ({"timestamp": float("nan")}, "timestamp"),
        ({"timestamp": float("inf")}, "timestamp"),
        ({"timestamp": 1_764_000_000_123_000_000}, "timestamp"),
        ({"hash_ids": [1, 2]}, "hash_ids"),
        ({"hash_ids": [1, 2, 3, 4]}, "hash_ids"),
        ({"hash_ids": []}, "hash_ids"),
        ({"hash_ids": [1, 2, 3.0]}, "hash_ids"),
        ({"hash_ids": [1, 2, "a"]}, "hash_ids"),
        ({"hash_ids": "1,2,3"}, "hash_ids"),
        ({"session_id": "s1"}, "session_id"),
        ({"delay": 12.5}, "delay"),
        ({"chat_id": 3}, "chat_id"),
    ],
)
def test_wrong_row_is_refused_with_its_line_and_field(
    tmp_path: Path, change: dict[str, Any], key: str
) -> None:
    path = written(tmp_path, GOOD, GOOD | change)
    error = refusal(path)
    assert (error.where, error.key) == (f"{path}:2", key)
    assert error.remedy
    if isinstance(change[key], int) and not isinstance(change[key], bool):
        assert error.value == change[key]


@pytest.mark.parametrize("missing", ["timestamp", "input_length", "output_length"])
@pytest.mark.parametrize("line", [1, 2])
def test_missing_field_is_named(tmp_path: Path, missing: str, line: int) -> None:
    torn = {key: value for key, value in GOOD.items() if key != missing}
    path = written(tmp_path, *([GOOD] * (line - 1)), torn)
    error = refusal(path)
    assert (error.where, error.key) == (f"{path}:{line}", missing)


def test_broken_json_is_told_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text(json.dumps(GOOD) + '\n{"timestamp": 3,}\n' + json.dumps(GOOD) + "\n")
    error = refusal(path)
    assert error.where == f"{path}:2"
    assert "cut off" not in error.remedy


@pytest.mark.parametrize("rows_before", [0, 1])
def test_truncated_last_line_is_told_as_such(tmp_path: Path, rows_before: int) -> None:
    path = tmp_path / "trace"
    line = json.dumps(GOOD)
    path.write_text((line + "\n") * rows_before + line[:40])
    error = refusal(path)
    assert error.where == f"{path}:{rows_before + 1}"
    assert "cut off" in error.remedy


def test_fields_without_use_are_reported_with_their_rows(tmp_path: Path) -> None:
    read = read_trace(written(tmp_path, GOOD | {"priority": 1}, GOOD, GOOD | {"priority": 2}))
    assert read.warnings == ("the field 'priority' of 2 rows is not used",)


@pytest.mark.parametrize(
    ("name", "rows", "doubts"),
    [
        ("conversation_trace.rows0-5999.jsonl", 6000, ["all arrivals are recorded on a grid"]),
        ("synthetic_trace.rows0-1999.jsonl", 2000, []),
    ],
)
def test_published_traces_read_whole(
    data_dir: Path, name: str, rows: int, doubts: list[str]
) -> None:
    path = data_dir / "traces" / "mooncake" / name
    read = read_trace(path)
    recorded = [json.loads(line) for line in path.read_text().splitlines()]
    workload = read.workload
    assert (read.rows_read, read.rows_kept, read.dropped) == (rows, rows, {})
    assert [
        warning[: len(doubt)] for warning, doubt in zip(read.warnings, doubts, strict=True)
    ] == doubts
    assert workload.input_tokens.tolist() == [row["input_length"] for row in recorded]
    assert workload.output_tokens.tolist() == [row["output_length"] for row in recorded]
    assert workload.arrival_s.tolist() == [row["timestamp"] / 1000 for row in recorded]
    ids = [block for row in recorded for block in row["hash_ids"]]
    assert sorted(set(workload.block_ids.tolist())) == list(range(len(set(ids))))
    assert len(set(zip(ids, workload.block_ids.tolist(), strict=True))) == len(set(ids))


def test_six_thousand_rows_read_in_a_third_of_a_second(data_dir: Path) -> None:
    path = data_dir / "traces" / "mooncake" / "conversation_trace.rows0-5999.jsonl"

    def seconds() -> float:
        start = time.process_time()
        read_trace(path)
        return time.process_time() - start

    assert min(seconds() for _ in range(3)) < 0.3
