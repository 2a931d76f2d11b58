"""Any trace file: recognised by its content, every row accounted for, every mistake located."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import numpy as np
import pytest

from objectives.workload import read_trace
from spaces.errors import InputError

AZURE_HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"


def row(timestamp: float = 0, input_length: int = 600, output_length: int = 5) -> str:
    blocks = list(range(-(-input_length // 512)))
    fields = {
        "timestamp": timestamp,
        "input_length": input_length,
        "output_length": output_length,
        "hash_ids": blocks,
    }
    return json.dumps(fields)


def written(tmp_path: Path, *lines: str, name: str = "trace") -> Path:
    path = tmp_path / name
    path.write_text("\n".join(lines) + "\n")
    return path


def refusal(path: Path) -> InputError:
    with pytest.raises(InputError) as caught:
        read_trace(path)
    return caught.value


def test_format_is_told_by_content_not_by_name(tmp_path: Path) -> None:
    mooncake = written(tmp_path, row(), name="trace.csv")
    azure = written(tmp_path, AZURE_HEADER, "2023-11-16 18:17:03.5,7,8", name="trace.jsonl")
    assert read_trace(mooncake).format == "mooncake-jsonl"
    assert read_trace(azure).format == "azure-csv"


def test_gzip_reads_as_the_plain_file(tmp_path: Path) -> None:
    lines = [row(1000 * i, 500 + 400 * i) for i in range(5)]
    plain = read_trace(written(tmp_path, *lines)).workload
    packed = tmp_path / "packed"
    packed.write_bytes(gzip.compress(("\n".join(lines) + "\n").encode()))
    unpacked = read_trace(packed).workload
    for name in ("arrival_s", "input_tokens", "output_tokens", "block_offsets", "block_ids"):
        assert np.array_equal(getattr(plain, name), getattr(unpacked, name)), name


def test_cut_off_gzip_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.gz"
    path.write_bytes(gzip.compress((row() + "\n").encode())[:-12])
    assert "damaged or cut off" in refusal(path).rule


def test_byte_order_mark_and_blank_lines_are_no_rows(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_bytes(b"\xef\xbb\xbf\n  \r\n" + row(0).encode() + b"\n\n" + row(5).encode())
    read = read_trace(path)
    assert (read.rows_read, read.rows_kept) == (2, 2)


def test_unserved_rows_are_dropped_and_counted_by_reason(tmp_path: Path) -> None:
    path = written(
        tmp_path, row(0, 600, 0), row(1000), row(2000, 0, 9), row(3000, 9, 0), row(4000)
    )
    read = read_trace(path)
    assert read.dropped == {"no input tokens": 1, "no output tokens: failed request": 2}
    assert read.rows_read == 5
    assert read.rows_kept == len(read.workload) == 2
    assert read.workload.arrival_s.tolist() == [0, 3]


def test_trace_of_failed_requests_only_is_refused(tmp_path: Path) -> None:
    error = refusal(written(tmp_path, row(0, 600, 0)))
    assert error.value == {"no output tokens: failed request": 1}


def test_limit_counts_kept_requests(tmp_path: Path) -> None:
    path = written(tmp_path, row(0), row(1, 600, 0), row(2), row(3), "{broken")
    read = read_trace(path, limit=3)
    assert (read.rows_read, read.rows_kept) == (4, 3)


def test_limit_below_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="limit"):
        read_trace(written(tmp_path, row()), limit=0)


def test_few_late_rows_are_sorted_stably_and_reported(tmp_path: Path) -> None:
    path = written(tmp_path, row(2000, 10), row(1000, 20), row(2000, 30), row(1000, 40))
    read = read_trace(path)
    assert read.workload.arrival_s.tolist() == [0, 0, 1, 1]
    assert read.workload.input_tokens.tolist() == [20, 40, 10, 30]
    assert len(read.warnings) == 1
    assert read.warnings[0].startswith("2 of 4 rows")
    assert f"{path}:2" in read.warnings[0]


def test_blocks_follow_their_requests_when_sorted_and_stay_dense(tmp_path: Path) -> None:
    rows = [(3000, [7, 8]), (1000, [5]), (2000, [5, 9])]
    lines = [
        json.dumps(
            {"timestamp": t, "input_length": 512 * len(ids), "output_length": 1, "hash_ids": ids}
        )
        for t, ids in rows
    ]
    workload = read_trace(written(tmp_path, *lines)).workload
    assert workload.block_offsets.tolist() == [0, 1, 3, 5]
    assert workload.block_ids.tolist() == [0, 0, 1, 2, 3]


def test_two_traces_in_one_file_are_refused_where_time_starts_again(tmp_path: Path) -> None:
    once = [row(1000 * i) for i in range(20)]
    path = written(tmp_path, *once, *once)
    error = refusal(path)
    assert error.where == f"{path}:21"
    assert error.key == "timestamp"
    assert "split" in error.remedy


def test_shuffled_trace_is_refused(tmp_path: Path) -> None:
    lines = [row(1000 * i) for i in range(200)]
    random.Random(1).shuffle(lines)
    assert "order of time" in refusal(written(tmp_path, *lines)).rule


def test_missing_file_is_told(tmp_path: Path) -> None:
    assert refusal(tmp_path / "none").rule == "the file must exist"


def test_directory_empty_binary_and_unknown_files_are_told_the_known_formats(
    tmp_path: Path,
) -> None:
    empty = tmp_path / "empty"
    empty.write_text("\n\n")
    binary = tmp_path / "binary"
    binary.write_bytes(bytes(range(256)) * 10)
    zeros = tmp_path / "zeros"
    zeros.write_bytes(bytes(100))
    unknown = written(tmp_path, "a,b,c", "1,2,3")
    for path in (tmp_path, empty, binary, zeros, unknown):
        error = refusal(path)
        assert error.where.startswith(str(path))
        assert "mooncake-jsonl" in error.remedy and "azure-csv" in error.remedy


@pytest.mark.parametrize(
    ("lines", "line"),
    [
        ([row(), AZURE_HEADER, "2023-11-16 18:17:03.5,7,8"], 2),
        ([AZURE_HEADER, "2023-11-16 18:17:03.5,7,8", row()], 3),
        ([AZURE_HEADER, "2023-11-16 18:17:03.5,7,8", AZURE_HEADER], 3),
        ([row(), "", json.dumps([1, 2])], 3),
    ],
)
def test_mixed_formats_are_refused_at_the_first_foreign_line(
    tmp_path: Path, lines: list[str], line: int
) -> None:
    path = written(tmp_path, *lines)
    assert refusal(path).where == f"{path}:{line}"


def test_binary_data_in_the_middle_is_located(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_bytes(row().encode() + b"\n\xff\xfe\n")
    assert refusal(path).where == f"{path}:2"


@pytest.mark.parametrize(("step_ms", "warned"), [(0.05, True), (0.2, False)])
def test_absurd_rate_raises_a_doubt_about_the_unit(
    tmp_path: Path, step_ms: float, warned: bool
) -> None:
    read = read_trace(written(tmp_path, *(row(step_ms * i) for i in range(50))))
    assert any("unit" in warning for warning in read.warnings) == warned


@pytest.mark.parametrize(("rows", "warned"), [(1001, True), (1000, False)])
def test_many_requests_at_one_moment_raise_a_doubt(
    tmp_path: Path, rows: int, warned: bool
) -> None:
    read = read_trace(written(tmp_path, *[row()] * rows))
    assert any("unit" in warning for warning in read.warnings) == warned
