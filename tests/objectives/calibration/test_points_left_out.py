"""What a calibration could not use is told: rows that are no points, points not predicted."""

from __future__ import annotations

from pathlib import Path

import pytest

from objectives.calibration import calibrated
from objectives.validation import read_points
from spaces.errors import InputError
from tests.objectives.validation.rows import AGGREGATED, write_rows

SECONDS = AGGREGATED | {"tpot_ms_median": 0.012, "config_id": "seconds"}
UNKNOWN = AGGREGATED | {"hardware": "Abacus", "config_id": "unknown"}
WHOLE = AGGREGATED | {"output_tput_per_chip_tok_s": 600.0, "config_id": "of all chips"}
CROWDED = AGGREGATED | {"concurrency": 300, "config_id": "crowded"}


def test_what_was_left_out_is_counted_in_the_notes(tmp_path: Path) -> None:
    rows = [AGGREGATED, SECONDS, UNKNOWN, CROWDED, WHOLE]
    file = read_points(write_rows(tmp_path / "p.csv", rows))
    notes = calibrated(file, command="c", fitted="2026-12-01").notes
    assert "1 rows not read: TPOT is no time in ms, it must be 0.1 to 10,000" in notes
    assert "1 left out: must be one of the catalogue's chips (Abacus)" in notes
    assert "1 of more than 256 users: no constants are fitted to them" in notes
    assert any(note.startswith("1 left out: throughput x TPOT is more") for note in notes)


@pytest.mark.parametrize(
    ("row", "reason"),
    [(SECONDS, "no time in ms"), (UNKNOWN, "Abacus"), (CROWDED, "more than 256 users")],
)
def test_of_no_points_at_all_the_reasons_are_told(
    tmp_path: Path, row: dict[str, object], reason: str
) -> None:
    file = read_points(write_rows(tmp_path / "p.csv", [row]))
    with pytest.raises(InputError) as told:
        calibrated(file, command="c", fitted="2026-12-01")
    assert reason in str(told.value)
