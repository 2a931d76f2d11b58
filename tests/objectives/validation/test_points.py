"""Reading measured points: repeats are one point, means stay apart, every row is accounted for."""

from __future__ import annotations

from pathlib import Path

import pytest

from objectives.validation import read_points
from objectives.validation.points import THROUGHPUT
from objectives.validation.scope import contradiction
from spaces.errors import InputError
from tests.objectives.validation.rows import AGGREGATED, DISAGGREGATED, write_rows


def test_repeats_under_one_load_and_image_are_one_point_with_their_median(tmp_path: Path) -> None:
    rows = [AGGREGATED | {"tpot_ms_median": value} for value in (10.0, 11.0, 20.0)]
    other_image = AGGREGATED | {"engine_version": "v0.12"}
    other_load = AGGREGATED | {"concurrency": 16}
    file = read_points(write_rows(tmp_path / "p.csv", [*rows, other_image, other_load]))
    assert [point.rows for point in file.points] == [3, 1, 1]
    assert file.points[0].measured["tpot"] == 11.0


def test_means_are_taken_only_where_no_median_is_stated_and_under_their_own_name(
    tmp_path: Path,
) -> None:
    both = AGGREGATED | {"ttft_ms_mean": 900.0}
    mean_only = both | {"ttft_ms_median": "", "config_id": "mean"}
    read = read_points(write_rows(tmp_path / "p.csv", [both, mean_only])).points
    assert read[0].measured == {"tpot": 12.0, "ttft": 100.0, THROUGHPUT: 150.0}
    assert read[1].measured == {"tpot": 12.0, "ttft_mean": 900.0, THROUGHPUT: 150.0}


def test_real_mean_lengths_come_before_nominal_ones(tmp_path: Path) -> None:
    nominal = AGGREGATED | {"isl_mean": "", "osl_mean": "", "config_id": "nominal"}
    read = read_points(write_rows(tmp_path / "p.csv", [AGGREGATED, nominal])).points
    lengths = [(p.setup.input_tokens, p.setup.output_tokens) for p in read]
    assert lengths == [(922, 115), (1024, 128)]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"num_chips": ""}, "the number of chips is not stated"),
        ({"num_chips": "four"}, "num_chips is not a number"),
        ({"num_chips": "4.5"}, "num_chips is not a whole number"),
        ({"decode_tp": ""}, "the decode mapping is not stated"),
        ({"concurrency": ""}, "neither a concurrency nor a request rate is stated"),
        ({"concurrency": "-1"}, "concurrency is not above 0"),
        ({"isl": "", "isl_mean": ""}, "isl is not stated"),
        ({"tpot_ms_median": "inf"}, "tpot_ms_median is not finite"),
        ({"tpot_ms_median": 0.012}, "TPOT is no time in ms, it must be 0.1 to 10,000"),
        ({"ttft_ms_median": 0.1}, "TTFT is no time in ms, it must be 1 to 3,600,000"),
        (
            {"tpot_ms_median": "", "ttft_ms_median": "", "output_tput_per_chip_tok_s": ""},
            "no latency and no throughput is stated",
        ),
    ],
)
def test_a_row_that_says_too_little_is_counted_with_its_reason(
    tmp_path: Path, change: dict[str, object], reason: str
) -> None:
    file = read_points(write_rows(tmp_path / "p.csv", [AGGREGATED, AGGREGATED | change]))
    assert (len(file.points), file.unread) == (1, {reason: 1})


def test_a_file_without_the_column_of_drafts_has_none(tmp_path: Path) -> None:
    path = tmp_path / "p.csv"
    columns = [name for name in AGGREGATED if name != "spec_decode"]
    row = ",".join(str(AGGREGATED[name]).replace(",", ";") for name in columns)
    path.write_text(f"{','.join(columns)}\n{row}\n")
    assert read_points(path).points[0].setup.speculation == "none"
    unknown = write_rows(path, [AGGREGATED | {"spec_decode": ""}])
    assert read_points(unknown).points[0].setup.speculation == ""


def test_grades_choose_rows_and_rows_without_a_grade_are_taken(tmp_path: Path) -> None:
    rows = [AGGREGATED | {"quality": g, "config_id": f"of {g}"} for g in ("A", "B", "C", "")]
    path = write_rows(tmp_path / "p.csv", rows)
    assert [p.config for p in read_points(path).points] == ["of A", "of"]
    assert read_points(path).of_grade == 2
    assert read_points(path, ("A", "B")).of_grade == 3


@pytest.mark.parametrize(
    ("row", "kept"),
    [
        (AGGREGATED, True),
        (AGGREGATED | {"num_chips": 8}, False),
        (AGGREGATED | {"num_chips": 8, "decode_workers": 2}, True),
        (AGGREGATED | {"num_chips": 8, "decode_dp": 2}, True),
        (DISAGGREGATED, True),
        (DISAGGREGATED | {"decode_workers": 1}, False),
        (DISAGGREGATED | {"prefill_chips": 8, "num_chips": 16}, False),
        (DISAGGREGATED | {"num_chips": 16}, False),
    ],
)
def test_a_mapping_must_give_the_chips_that_are_stated(
    tmp_path: Path, row: dict[str, object], kept: bool
) -> None:
    (point,) = read_points(write_rows(tmp_path / "p.csv", [row])).points
    assert (contradiction(point.setup) is None) == kept


def test_a_file_without_the_columns_is_told_which_are_missing(tmp_path: Path) -> None:
    path = tmp_path / "p.csv"
    path.write_text("model,isl,osl_mean\nx,1,1\n")
    with pytest.raises(InputError, match="missing: hardware, engine, num_chips"):
        read_points(path)


@pytest.mark.parametrize("content", ["", "model\n", '"model\n"x'])
def test_a_file_that_is_no_table_is_one_message(tmp_path: Path, content: str) -> None:
    path = tmp_path / "p.csv"
    path.write_text(content)
    with pytest.raises(InputError, match=r"p\.csv"):
        read_points(path)


def test_the_shared_points_are_read_as_they_stand(data_dir: Path) -> None:
    file = read_points(data_dir / "measured" / "serving_points.csv")
    assert (file.rows, file.of_grade, file.unread) == (8062, 3979, {})
    assert sum(point.rows for point in file.points) == 3979
    broken = sum(p.rows for p in file.points if contradiction(p.setup))
    assert broken == 270


def test_rows_of_every_grade_are_read_or_counted(data_dir: Path) -> None:
    file = read_points(data_dir / "measured" / "serving_points.csv", ("A", "B", "C"))
    assert sum(point.rows for point in file.points) + sum(file.unread.values()) == file.rows
