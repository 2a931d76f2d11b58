"""Peak memory of reading two million rows; run with: pytest -m benchmark tests/benchmarks.

Each file is read by a process of its own, whose peak resident size is what the kernel counted.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.benchmark

ROWS = 2_000_000
# What a request takes in the native form is about 60 bytes and 4 for each prefix block; reading
# may hold a few copies, but never the rows as text or objects.
BYTES_PER_ROW = 450
IMPORTS_BYTES = 300_000_000

READ = """
import resource, sys
from pathlib import Path
from objectives.workload import ColumnMapping, read_trace
mapping = None
if sys.argv[2:]:
    mapping = ColumnMapping(input_tokens="i", output_tokens="o", arrival="t")
workload = read_trace(Path(sys.argv[1]), columns=mapping).workload
print(len(workload), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


def burstgpt(path: Path) -> None:
    """Single requests, without prefixes."""
    with path.open("w") as file:
        file.write("Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n")
        for row in range(ROWS):
            file.write(f"{row // 3},ChatGPT,{100 + row % 900},{1 + row % 300},0,API log\n")


def mooncake(path: Path) -> None:
    """Requests of four prefix blocks, two of them new."""
    with path.open("w") as file:
        for row in range(ROWS):
            ids = [0, 1 + row // 5, ROWS + 2 * row, ROWS + 2 * row + 1]
            fields = {"timestamp": 300 * row, "input_length": 2000, "output_length": 90}
            file.write(json.dumps(fields | {"hash_ids": ids}) + "\n")


def parquet(path: Path) -> None:
    """A table of another program."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    names = {"t": range(ROWS), "i": [500] * ROWS, "o": [50] * ROWS}
    pq.write_table(pa.table({name: list(values) for name, values in names.items()}), path)


@pytest.mark.parametrize("written", [burstgpt, mooncake, parquet])
def test_millions_of_rows_are_read_in_bounded_memory(
    tmp_path: Path, written: Callable[[Path], None]
) -> None:
    path = tmp_path / "trace"
    written(path)
    mapped = ["mapped"] if written is parquet else []
    command = [sys.executable, "-c", READ, str(path), *mapped]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    kept, peak_bytes = map(int, told.split())
    print(
        f"{written.__name__}: {path.stat().st_size / 1e6:.0f} MB, peak {peak_bytes / 1e6:.0f} MB"
    )
    assert kept == ROWS
    assert peak_bytes < IMPORTS_BYTES + BYTES_PER_ROW * ROWS
