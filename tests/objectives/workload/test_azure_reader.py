"""Azure CSV: wall-clock times with 100 ns digits, CRLF line ends, no prefix information."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from objectives.workload import read_trace
from spaces.errors import InputError

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"
GOOD = "2023-11-16 18:17:03.9799600,4808,10"


def written(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "trace.csv"
    path.write_bytes("\r\n".join(lines).encode())
    return path


def test_crlf_file_without_final_line_end_reads_whole(tmp_path: Path) -> None:
    read = read_trace(written(tmp_path, HEADER, GOOD, "2023-11-16 18:17:04.0319600,3180,8"))
    assert read.workload.input_tokens.tolist() == [4808, 3180]
    assert read.workload.output_tokens.tolist() == [10, 8]
    assert read.workload.arrival_s.tolist() == [0, 0.052]
    assert read.workload.block_tokens == 0
    assert read.workload.block_offsets.tolist() == [0, 0, 0]
    assert (read.format, read.rows_read, read.rows_kept) == ("azure-csv", 2, 2)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2023-11-16 18:17:03.9799601", 1e-7),
        ("2023-11-16 18:17:04", 0.02004),
        ("2023-11-17 00:00:00.9799600", 20577),
        ("2023-11-16 18:17:04.9799600+00:00", 1),
        ("2023-11-16 20:17:04.9799600+02:00", 1),
        ("2023-11-16T18:17:05.97996Z", 2),
    ],
)
def test_times_keep_every_digit_and_their_offset(
    tmp_path: Path, text: str, seconds: float
) -> None:
    workload = read_trace(written(tmp_path, HEADER, GOOD, f"{text},1,1")).workload
    assert workload.arrival_s[1] == pytest.approx(seconds, rel=1e-12)


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ("2023-11-16 18:17:03.9799600,-5,10", "ContextTokens"),
        ("2023-11-16 18:17:03.9799600,4.5,10", "ContextTokens"),
        ("2023-11-16 18:17:03.9799600,,10", "ContextTokens"),
        ("2023-11-16 18:17:03.9799600,5,ten", "GeneratedTokens"),
        ("2023-11-16 18:17:03.9799600,5,9999999999", "GeneratedTokens"),
        ("2023-13-16 18:17:03.9799600,5,10", "TIMESTAMP"),
        ("9023-11-16 18:17:03.9799600,5,10", "TIMESTAMP"),
        ("1700158623,5,10", "TIMESTAMP"),
        (",5,10", "TIMESTAMP"),
        ("2023-11-16 18:17:03.9799600,5", ""),
        ("2023-11-16 18:17:03.9799600,5,10,1", ""),
    ],
)
def test_wrong_row_is_refused_with_its_line_and_field(tmp_path: Path, line: str, key: str) -> None:
    path = written(tmp_path, HEADER, GOOD, line, GOOD)
    with pytest.raises(InputError) as caught:
        read_trace(path)
    assert (caught.value.where, caught.value.key) == (f"{path}:3", key)
    assert caught.value.remedy


def test_truncated_last_line_is_told_as_such(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cut off"):
        read_trace(written(tmp_path, HEADER, GOOD, GOOD[:30]))


def test_header_alone_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="at least one request"):
        read_trace(written(tmp_path, HEADER, ""))


@pytest.mark.parametrize(
    "name", ["AzureLLMInferenceTrace_code.csv", "AzureLLMInferenceTrace_conv.rows0-9999.csv"]
)
def test_published_traces_read_whole(data_dir: Path, name: str) -> None:
    path = data_dir / "traces" / "azure" / name
    with path.open(newline="") as file:
        recorded = list(csv.DictReader(file))
    read = read_trace(path)
    assert (read.rows_read, read.rows_kept, read.warnings) == (len(recorded), len(recorded), ())
    assert read.workload.input_tokens.tolist() == [int(row["ContextTokens"]) for row in recorded]
    assert read.workload.output_tokens.tolist() == [
        int(row["GeneratedTokens"]) for row in recorded
    ]
