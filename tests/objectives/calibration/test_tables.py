"""Calibration from tables of single operators and of engine steps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from objectives.calibration import sorted_files, with_tables
from objectives.calibration.measured_files import Rows, kind_of
from objectives.calibration.operators import KINDS, OperatorRows, log_errors, operator_rows
from objectives.calibration.shrunk import shrunk_fit
from objectives.calibration.steps import constants_of, step_rows
from objectives.calibration.steps import log_errors as step_errors
from objectives.cost import RankBatch, step_costs, step_seconds
from objectives.cost.machine import machine_of
from objectives.cost.tuning import Factors
from spaces.calibration import Calibration, Stack
from spaces.catalog import chip, model
from spaces.errors import InputError
from spaces.plan import Pool, Precision

SIZES = [(m, n, k) for m in (1, 16, 256, 4096) for n, k in ((2048, 4096), (8192, 8192))]


def product_table(slower: float, rows: int = len(SIZES)) -> pd.DataFrame:
    """Products on MI300X that take so many times what the cost model says."""
    frame = pd.DataFrame(SIZES[:rows], columns=["m", "n", "k"])
    group = OperatorRows(KINDS["gemm"], "mi300x", "any", "bf16", frame.assign(latency_us=1.0))
    us = np.exp(log_errors(group, Factors()))
    told = {"system": "mi300x", "backend": "vllm", "op": "gemm", "dtype": "bfloat16"}
    return frame.assign(**told, latency_us=slower * us)


def written(folder: Path, name: str, table: pd.DataFrame) -> Path:
    path = folder / name
    table.to_csv(path, index=False)
    return path


def decode_seconds(calibration: Calibration, kind: str) -> float:
    pool = Pool(role="aggregated", chip=kind, tp=4)
    costs = step_costs(
        *(model("qwen3-32b"), chip(kind), pool, Precision(), "vllm"),
        changes=calibration.changes,
    )
    return step_seconds(costs, [RankBatch((1000.0,) * 8)])[0]


def test_slow_products_of_one_chip_slow_its_steps_and_no_others(tmp_path: Path) -> None:
    path = written(tmp_path, "ops.csv", product_table(2.0))
    found = with_tables(Calibration(), [path])
    assert set(found.constants) == {
        f"operators.mi300x.product.bf16.any.{term}" for term in ("multiply", "move", "fixed")
    }
    assert all(1.0 < value < 2.0 for value in found.constants.values())
    ratio = decode_seconds(found, "mi300x") / decode_seconds(Calibration(), "mi300x")
    assert 1.1 < ratio < 1.9
    assert decode_seconds(found, "mi325x") == decode_seconds(Calibration(), "mi325x")
    (table,) = found.tables
    assert (table.kind, table.rows, len(table.sha256)) == ("operators", len(SIZES), 64)
    assert table.fits[0].error_before == pytest.approx(0.5, abs=1e-3)
    assert table.fits[0].error_after < 0.3


def test_few_rows_move_little_and_more_rows_move_more(tmp_path: Path) -> None:
    few, more = (
        with_tables(Calibration(), [written(tmp_path, f"{n}.csv", product_table(1.5, n))])
        for n in (1, len(SIZES))
    )
    moved = [np.log(decode_seconds(one, "mi300x")) for one in (Calibration(), few, more)]
    assert 0 < moved[1] - moved[0] < 0.35 * np.log(1.5)
    assert moved[1] < moved[2]


def test_factors_that_do_not_bring_the_error_down_are_not_kept(tmp_path: Path) -> None:
    found = with_tables(Calibration(), [written(tmp_path, "ops.csv", product_table(1.0))])
    assert found.constants == {}
    assert found.tables[0].fits[0].error_after == found.tables[0].fits[0].error_before


def test_rows_that_cannot_be_used_are_counted_by_reason() -> None:
    table = pd.concat([product_table(1.0)] * 6, ignore_index=True).iloc[:6]
    table = table.assign(provenance="measured_table", suspect=None, distribution=None)
    table = table.astype({"op": object, "suspect": object, "distribution": object})
    table.loc[1, "system"] = "abacus"
    table.loc[2, "provenance"] = "engine_interpolated"
    table.loc[3, "suspect"] = "eager"
    table.loc[4, "op"] = "p2p"
    table.loc[5, "dtype"] = "int3"
    rows = Rows("ops.csv", "0" * 64, table)
    assert [len(group.frame) for group in operator_rows(rows)] == [1]
    assert sorted(rows.left_out.values()) == [1, 1, 1, 1, 1]
    assert any("catalogue lacks" in reason for reason in rows.left_out)


def step_table(machine_factor: float) -> pd.DataFrame:
    """Decode steps of Qwen3-32B on H200 that take so many times what the cost model says."""
    frame = pd.DataFrame(
        [(tp, b, 1000 * b) for tp in (1, 2, 4) for b in (1, 4, 16, 64)],
        columns=["tp", "decode_requests", "decode_kv_tokens"],
    ).assign(
        hardware="H200 (mine)",
        model="Qwen/Qwen3-32B",
        vllm_version="0.20.1",
        prefill_tokens=0,
        prefill_requests=0,
        prefill_kv_tokens=0,
        latency_ms=1.0,
    )
    (steps,) = step_rows(Rows("steps.csv", "0" * 64, frame))
    machine = machine_of(chip("h200"), "vllm")
    ms = np.exp(step_errors(steps, machine, constants_of(machine)))
    return frame.assign(latency_ms=machine_factor * ms)


def test_slow_steps_of_one_chip_raise_its_constants_alone(tmp_path: Path) -> None:
    found = with_tables(Calibration(), [written(tmp_path, "steps.csv", step_table(1.3))])
    assert found.constants["chips.h200.engines.by_engine.vllm.step_us"] > 250
    assert found.constants["chips.h200.kernels.small_us"] > 1.6
    (offset,) = found.offsets
    assert (offset.models, offset.chip, offset.engine) == (("qwen3-32b",), "h200", "vllm")
    own = Stack("qwen3-32b", "h200", "NVIDIA", "vllm", "bf16")
    slower = decode_seconds(found, "h200") / decode_seconds(Calibration(), "h200")
    assert 1.1 < slower * found.step_factor(own) < 1.3
    assert found.step_factor(replace(own, chip="h100")) == 1.0
    assert decode_seconds(found, "h100") == decode_seconds(Calibration(), "h100")
    assert found.tables[0].fits[0].error_after < found.tables[0].fits[0].error_before


def test_steps_as_predicted_change_next_to_nothing(tmp_path: Path) -> None:
    found = with_tables(Calibration(), [written(tmp_path, "steps.csv", step_table(1.0))])
    ratio = decode_seconds(found, "h200") / decode_seconds(Calibration(), "h200")
    assert ratio == pytest.approx(1.0, abs=2e-3)


def test_files_are_told_apart_by_their_columns(tmp_path: Path) -> None:
    operators = written(tmp_path, "a.csv", product_table(1.0))
    steps = written(tmp_path, "b.csv", step_table(1.0))
    points = tmp_path / "c.csv"
    points.write_text("model,hardware,engine,num_chips\n")
    result = tmp_path / "d.json"
    result.write_text('{"completed": 3}\n')
    assert [kind_of(p) for p in (operators, steps, points, result)] == [
        *("operators", "steps", "points", "points")
    ]
    assert sorted_files([steps, points, result]) == ([points, result], [steps])


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("op,latency_us\ngemm,3\n", "must say system or chip or hardware"),
        ("op,latency_us,system,dtype\ngemm,3,h200,bf16\n", "lacks columns: m, n, k"),
        ("op,latency_us,system\n", "at least one row"),
        ("op,latency_us,system\np2p,3,h200\n", "no row of the table can be predicted: 1 p2p"),
        ("op,latency_us,system,dtype,m,n,k\ngemm,x,h200,bf16,1,2,3\n", "1 without a latency"),
        ("latency_ms,decode_requests\n3,1\n", "lacks columns: model, prefill_tokens"),
    ],
)
def test_a_table_without_what_is_needed_is_refused(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=told) as refused:
        with_tables(Calibration(), [path])
    assert "rows.csv" in str(refused.value.where)
    assert "docs/calibration.md" in str(refused.value.remedy)


def test_a_shrunk_fit_of_one_row_goes_the_share_that_its_noise_allows() -> None:
    found = shrunk_fit(
        lambda figure: np.log(figure / 1.01),
        np.array([1.0]),
        np.array([0.2]),
        noise=0.3,
    )
    share = np.log(found[0]) / np.log(1.01)
    assert share == pytest.approx(0.2**2 / (0.2**2 + 0.3**2 / 1.0), rel=0.35)


def test_calibrations_with_tables_round_trip(tmp_path: Path) -> None:
    from spaces.calibration import load_calibration

    found = with_tables(Calibration(), [written(tmp_path, "ops.csv", product_table(2.0))])
    path = tmp_path / "cal.yaml"
    path.write_text(found.to_yaml())
    assert load_calibration(path) == found
