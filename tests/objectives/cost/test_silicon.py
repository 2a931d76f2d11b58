"""Products read from measured tables: made-up small ones, and the real ones where installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from objectives.cost import silicon
from objectives.cost.build import step_costs
from objectives.cost.kernel_tables import FittedKernel, load_kernels
from objectives.cost.kernel_work import gemm_work
from objectives.cost.silicon import measured_kernels, measured_tables, newest, tables_of
from spaces.catalog import chip, model
from spaces.errors import InputError
from spaces.plan import Pool, Precision

needs_extra = pytest.mark.skipif(
    importlib.util.find_spec(silicon.PACKAGE) is None, reason="needs the extra silicon"
)


def a_kernel() -> FittedKernel:
    found = load_kernels("h100").find("gemm", "bfloat16")
    return next(kernel for kernel in found if kernel.engine == "vllm")


@pytest.fixture
def small_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[list[tuple[int, int, int, float]]]:
    """One kernel of one engine at two sizes of each kind, one of them never measured."""
    kernel = a_kernel()
    sizes = [(m, n, k) for m in (1, 256) for n in (1024, 4096) for k in (2048, 8192)][:-1]
    rows = [(*size, 0.01 + 0.001 * place) for place, size in enumerate(sizes)]
    table = pd.DataFrame(rows, columns=["m", "n", "k", "latency"])
    table = table.assign(kernel_source=kernel.kernel, gemm_dtype=kernel.dtype)
    for kind, file in (("gemm", "gemm_perf"), ("moe", "moe_perf")):
        folder = tmp_path / "h100_sxm" / kind / kernel.engine / "1.0.0"
        folder.mkdir(parents=True)
        table.to_parquet(folder / f"{file}.parquet")
    monkeypatch.setattr(silicon, "measured_tables", lambda: tmp_path)
    measured_kernels.cache_clear()
    yield rows
    measured_kernels.cache_clear()


def seconds_of(kernel: FittedKernel, m: float, n: float, k: float) -> float:
    return float(kernel.seconds(gemm_work(chip("h100"), m, n, k, "bf16")))


def test_measured_shapes_are_met_exactly_and_gaps_by_the_fit(
    small_tables: list[tuple[int, int, int, float]],
) -> None:
    fitted = a_kernel()
    found = measured_kernels(chip("h100")).find("gemm", "bfloat16")
    mine = next(kernel for kernel in found if kernel.kernel == fitted.kernel)
    for m, n, k, ms in small_tables:
        assert seconds_of(mine, m, n, k) == pytest.approx(ms * 1e-3)
    gap = (256.0, 4096.0, 8192.0)
    assert seconds_of(mine, *gap) == pytest.approx(seconds_of(fitted, *gap))


@pytest.mark.usefixtures("small_tables")
def test_other_engines_keep_their_fit() -> None:
    found = measured_kernels(chip("h100")).kernels
    others = [kernel for kernel in load_kernels("h100").kernels if kernel.engine != "vllm"]
    assert [kernel for kernel in found if kernel.engine != "vllm"] == others


def test_the_latest_version_with_enough_rows_counts(tmp_path: Path) -> None:
    for version, rows in (("1.0.0", 10), ("1.10.0", 6), ("1.9.0", 8), ("2.0.0rc1", 1)):
        folder = tmp_path / "s" / "gemm" / "vllm" / version
        folder.mkdir(parents=True)
        pd.DataFrame({"m": range(rows)}).to_parquet(folder / "gemm_perf.parquet")
    tables = tables_of(tmp_path, "s", "vllm", "gemm_perf")
    assert sorted(tables) == ["1.0.0", "1.10.0", "1.9.0", "2.0.0rc1"]
    assert newest(tables) == "1.10.0"


def test_without_the_extra_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silicon, "PACKAGE", "no_such_package")
    with pytest.raises(InputError) as refused:
        measured_tables()
    assert refused.value.key == "operator_costs"
    assert "servefront[silicon]" in str(refused.value.remedy)


def test_a_chip_without_tables_is_refused_by_name() -> None:
    with pytest.raises(InputError) as refused:
        measured_kernels(chip("mi300x"))
    assert "mi300x" in str(refused.value.value)


@needs_extra
def test_steps_from_measured_tables_are_near_those_from_the_fit() -> None:
    pool = Pool(role="aggregated", chip="h200", tp=4)
    mine, h200 = model("llama-3.3-70b"), chip("h200")
    fitted, measured = (
        step_costs(mine, h200, pool, Precision(), "vllm", None, "", source).token_s
        for source in ("fitted", "measured")
    )
    assert (fitted != measured).any()
    np.testing.assert_allclose(measured, fitted, rtol=0.15)
