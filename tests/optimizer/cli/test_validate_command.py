"""servefront validate: its document, its tables, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.objectives.validation.rows import AGGREGATED, write_rows
from tests.optimizer.cli.test_cli import call

KEYS = {
    "n",
    "median_ape_pct",
    "mape_pct",
    "bias_pct",
    "within_10_pct",
    "within_20_pct",
    "interval_coverage",
}


@pytest.fixture
def points(tmp_path: Path) -> Path:
    """Two points of one configuration and a row that contradicts itself."""
    rows = [
        AGGREGATED,
        AGGREGATED | {"concurrency": 16},
        AGGREGATED | {"num_chips": 8, "config_id": "broken"},
    ]
    return write_rows(tmp_path / "points.csv", rows)


def test_the_document_keeps_its_contract(points: Path) -> None:
    result = call("validate", points, "--json", "--by", "model,chip")
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert (found["overall"]["n"], found["overall"]["answered"]) == (2, 2)
    assert found["overall"]["refused"] == {}
    (group,) = found["groups"]
    assert group["group"] == {"model": "Llama-3.3-70B", "chip": "H200"}
    for part in (found["overall"], group):
        for quantity in ("tpot", "ttft", "output_throughput_per_chip"):
            assert part[quantity].keys() >= KEYS
    assert "tpot_mean" not in found["overall"]


def test_progress_goes_to_stderr_and_the_table_to_stdout(points: Path) -> None:
    result = call("validate", points)
    assert "left out: 1 rows, the mapping contradicts the chip count" in result.stdout
    assert "TPOT, median of requests" in result.stdout
    assert "simulated 2 of 2" in result.stderr


def test_tables_are_written_between_the_marks_of_a_page(points: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("above\n<!-- tables: begin -->\nold\n<!-- tables: end -->\nbelow\n")
    assert call("validate", points, "--markdown", page).exit_code == 0
    text = page.read_text()
    assert text.startswith("above\n")
    assert text.endswith("\nbelow\n")
    assert "old" not in text
    assert "| H200 agg | " not in text  # fewer points than a group's line needs
    assert "| all | TPOT, median of requests | 2 |" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--by", "engin"), "did you mean engine"),
        (("--markdown", "{folder}/no.md"), "the file must exist"),
        (("--markdown", "{folder}/points.csv"), "tables: begin"),
    ],
)
def test_wrong_options_are_one_message(
    points: Path, arguments: tuple[str, ...], message: str
) -> None:
    result = call("validate", points, *(a.format(folder=points.parent) for a in arguments))
    assert result.exit_code == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_a_missing_file_is_one_message(tmp_path: Path) -> None:
    result = call("validate", tmp_path / "none.csv")
    assert (result.exit_code, "must exist" in result.stderr) == (2, True)
