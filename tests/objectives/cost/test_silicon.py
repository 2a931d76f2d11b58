"""Operators read from measured tables: made-up small ones, and the real ones where installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from objectives.cost.build import step_costs
from objectives.cost.context import context_seconds
from objectives.cost.kernel_tables import FittedKernel, load_kernels
from objectives.cost.kernel_work import gemm_work
from objectives.cost.machine import Machine, machine_of
from objectives.cost.silicon import measured_kernels, newest, tables, tables_of
from objectives.cost.silicon.attention import decode_law, prefill_law
from objectives.cost.silicon.exchanges import all_reduce_curve, all_to_all_curve, gather_curve
from objectives.cost.silicon.experts import ExpertLayout, experts_curve, kriged_kernels
from objectives.cost.silicon.tables import measured_tables, newest_table
from objectives.cost.sources import source_counts
from objectives.cost.step_costs import StepCosts
from spaces.catalog import chip, model
from spaces.errors import InputError
from spaces.model import GqaAttention
from spaces.plan import EngineName, Pool, Precision

needs_extra = pytest.mark.skipif(
    importlib.util.find_spec(tables.PACKAGE) is None, reason="needs the extra silicon"
)
CACHED = (
    *(measured_kernels, newest_table, experts_curve, all_reduce_curve, all_to_all_curve),
    *(gather_curve, decode_law, prefill_law, kriged_kernels, step_costs),
)
Write = Callable[[str, str, pd.DataFrame], None]


def forget() -> None:
    for function in CACHED:
        function.cache_clear()


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Writes a table of an engine on H100 into a package of made-up ones."""
    monkeypatch.setattr(tables, "measured_tables", lambda: tmp_path)
    (tmp_path / "h100_sxm").mkdir()
    forget()

    def written(engine: str, file: str, table: pd.DataFrame) -> None:
        folder = tmp_path / "h100_sxm" / file / engine / "1.0.0"
        folder.mkdir(parents=True)
        table.to_parquet(folder / f"{file}.parquet")

    yield written
    forget()


def a_kernel() -> FittedKernel:
    found = load_kernels("h100").find("gemm", "bfloat16")
    return next(kernel for kernel in found if kernel.engine == "vllm")


def product_rows(kernel: FittedKernel) -> pd.DataFrame:
    """Two sizes of each kind, one of them never measured."""
    sizes = [(m, n, k) for m in (1, 256) for n in (1024, 4096) for k in (2048, 8192)][:-1]
    rows = [(*size, 0.01 + 0.001 * place) for place, size in enumerate(sizes)]
    table = pd.DataFrame(rows, columns=["m", "n", "k", "latency"])
    return table.assign(kernel_source=kernel.kernel, gemm_dtype=kernel.dtype)


def seconds_of(kernel: FittedKernel, m: float, n: float, k: float) -> float:
    return float(kernel.seconds(gemm_work(chip("h100"), m, n, k, "bf16")))


def test_measured_products_are_met_exactly_and_gaps_by_the_fit(write: Write) -> None:
    fitted = a_kernel()
    rows = product_rows(fitted)
    write("vllm", "gemm_perf", rows)
    found = measured_kernels(chip("h100")).kernels
    mine = next(kernel for kernel in found if kernel.kernel == fitted.kernel)
    for m, n, k, ms in rows[["m", "n", "k", "latency"]].itertuples(index=False):
        assert seconds_of(mine, m, n, k) == pytest.approx(ms * 1e-3)
    gap = (256.0, 4096.0, 8192.0)
    assert seconds_of(mine, *gap) == pytest.approx(seconds_of(fitted, *gap))
    assert mine.read_from == "vllm 1.0.0"
    others = [kernel for kernel in load_kernels("h100").kernels if kernel.engine != "vllm"]
    assert [kernel for kernel in found if kernel.engine != "vllm"] == others


def measured_machine(engine: EngineName = "vllm") -> Machine:
    return machine_of(chip("h100"), engine, operator_costs="measured")


def attention_rows(length: str, law: Callable[[int, int], float]) -> pd.DataFrame:
    """Rows of one geometry whose seconds follow a law of batch and length."""
    sizes = [(b, n) for b in (1, 8, 64) for n in (127, 1023, 8191, 32767)]
    table = pd.DataFrame(sizes, columns=["batch_size", length])
    table["latency"] = [1e3 * law(b, n) for b, n in sizes]
    other = "isl" if length == "step" else "step"
    return table.assign(
        **{other: 1 if other == "isl" else 0},
        num_heads=8,
        num_key_value_heads=1,
        head_dim=128,
        window_size=0,
        kv_cache_dtype="bfloat16",
    )


def test_attention_that_follows_the_law_is_read_back_as_its_coefficients(write: Write) -> None:
    write(
        "vllm",
        "generation_attention_perf",
        attention_rows("step", lambda b, n: 5e-6 + 1e-7 * b + 2e-10 * b * (n + 1)),
    )
    write(
        "vllm",
        "context_attention_perf",
        attention_rows("isl", lambda b, n: 8e-6 + 1e-9 * b * n + 3e-13 * b * n * (n + 1) / 2),
    )
    machine = measured_machine()
    group = GqaAttention(layers=1, heads=64, kv_heads=8, head_dim=128)
    found = context_seconds(machine, group, 8, "bf16")
    sustained = machine.overheads.sustained
    assert found.decode_base == pytest.approx(machine.launch_s(5.0))
    assert found.decode_request == pytest.approx(1e-7)
    assert found.decode_token == pytest.approx(2e-10 / sustained.kv_read)
    assert found.prefill_base == pytest.approx(machine.launch_s(8.0))
    assert found.chunk_token == pytest.approx(1e-9)
    assert found.pair == pytest.approx(3e-13 / sustained.compute)
    fitted = context_seconds(machine_of(chip("h100"), "vllm"), group, 8, "bf16")
    assert found.read == fitted.read
    assert source_counts(machine.log.told()) == {
        "decode attention": (1, 0),
        "prefill attention": (1, 0),
    }


def test_a_geometry_that_was_not_measured_falls_back_and_says_so(write: Write) -> None:
    write("vllm", "generation_attention_perf", attention_rows("step", lambda b, n: 1e-9 * b * n))
    machine = measured_machine()
    group = GqaAttention(layers=1, heads=64, kv_heads=8, head_dim=64)
    fitted = context_seconds(machine_of(chip("h100"), "vllm"), group, 8, "bf16")
    assert context_seconds(machine, group, 8, "bf16") == fitted
    assert [(s.measured, s.origin) for s in machine.log.told()] == [
        (False, "its geometry was not measured")
    ] * 2


def expert_rows(layouts: Sequence[tuple[int, ...]], us: Callable[..., float]) -> pd.DataFrame:
    names = ["hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size"]
    rows = [(*one, t, us(*one, t) * 1e-3) for one in layouts for t in (1, 16, 256, 4096)]
    table = pd.DataFrame(rows, columns=[*names, "num_tokens", "latency"])
    return table.assign(moe_dtype="fp8_block", kernel_source="k", distribution="balanced")


def test_a_measured_expert_layout_is_read_row_by_row(write: Write) -> None:
    write("vllm", "moe_perf", expert_rows([(4096, 2048, 8, 64, 1, 4)], lambda *x: 10.0 + x[-1]))
    layout = ExpertLayout(width=4096, inner=2048, top_k=8, experts=64, tp=1, ep=4, gated=True)
    curve = experts_curve(chip("h100"), "vllm", "fp8", layout)
    assert curve is not None
    asked = np.array([1.0, 256.0, 4096.0, 8192.0])
    assert curve.at(asked) == pytest.approx([11e-6, 266e-6, 4106e-6, 8212e-6])
    other = ExpertLayout(width=4096, inner=1024, top_k=8, experts=64, tp=1, ep=4, gated=True)
    assert experts_curve(chip("h100"), "vllm", "fp8", other) is None


def test_a_layout_between_measured_ones_is_kriged_and_one_beyond_them_is_not(
    write: Write,
) -> None:
    layouts = [
        (h, i, 8, e, 1, 1)
        for h in (2048, 4096, 8192)
        for i in (512, 1024, 2048, 4096)
        for e in (64, 128, 256)
        if (h, i, e) != (4096, 1024, 128)
    ]

    def smooth(h: int, i: int, k: int, e: int, tp: int, ep: int, t: int) -> float:
        return 20 + 1e-6 * h * i * min(e, t * k)

    write("vllm", "moe_perf", expert_rows(layouts, smooth))
    inside = ExpertLayout(width=4096, inner=1024, top_k=8, experts=128, tp=1, ep=1, gated=True)
    curve = experts_curve(chip("h100"), "vllm", "fp8", inside)
    assert curve is not None
    assert "between measured layouts" in curve.origin
    truth = [smooth(4096, 1024, 8, 128, 1, 1, t) * 1e-6 for t in (1, 16, 256, 4096)]
    assert curve.at(np.array([1.0, 16.0, 256.0, 4096.0])) == pytest.approx(truth, rel=0.1)
    beyond = ExpertLayout(width=4096, inner=16384, top_k=8, experts=128, tp=1, ep=1, gated=True)
    assert experts_curve(chip("h100"), "vllm", "fp8", beyond) is None


def test_the_faster_of_engine_and_nccl_sums_at_each_size_and_eager_launches_do_not_count(
    write: Write,
) -> None:
    sizes = [8192, 8388608]
    own = [(s, "vllm_graph", ms) for s, ms in zip(sizes, (0.005, 0.300), strict=True)]
    own += [(s, "vllm_eager", 0.001) for s in sizes]
    table = pd.DataFrame(own, columns=["message_size", "backend", "latency"])
    write("vllm", "custom_allreduce_perf", table.assign(num_gpus=4))
    library = pd.DataFrame({"message_size": sizes, "latency": [0.020, 0.100]})
    library = library.assign(num_gpus=4, nccl_dtype="half")
    kinds = [library.assign(op_name=kind) for kind in ("all_reduce", "all_gather")]
    write("nccl", "nccl_perf", pd.concat(kinds))
    curve = all_reduce_curve("h100", "vllm", 4)
    assert curve is not None
    assert curve.at(2.0 * np.array(sizes)) == pytest.approx([5e-6, 100e-6])
    assert all_reduce_curve("h100", "vllm", 8) is None
    gathered = gather_curve("h100", "all_gather", 4)
    assert gathered is not None
    assert gathered.at(2.0 * np.array(sizes)) == pytest.approx([20e-6, 100e-6])


def test_dispatch_and_combine_add_up_and_the_faster_kind_counts(write: Write) -> None:
    rows = [
        (kind, phase, tokens, us * 1e0)
        for kind, factor in (("ll", 1.0), ("ht", 3.0))
        for phase in ("dispatch", "combine")
        for tokens, us in ((1, 0.010 * factor), (1024, 0.100 / factor))
    ]
    table = pd.DataFrame(rows, columns=["comm_backend", "phase", "num_tokens", "latency"])
    table = table.assign(comm_dtype="default", ep_size=8, hidden_size=7168, topk=8)
    write("vllm", "moe_a2a_perf", table.assign(latency=table["latency"] * 1e3))
    asked: dict[str, Any] = {"chip": "h100", "engine": "vllm", "ep": 8, "dtype": "fp8"}
    curve = all_to_all_curve(**asked, width=7168, top_k=8)
    assert curve is not None
    assert curve.at(np.array([1.0, 1024.0])) == pytest.approx([20e-6, 2 * 100e-6 / 3])
    assert all_to_all_curve(**asked, width=4096, top_k=8) is None


def test_the_latest_version_with_enough_rows_counts(tmp_path: Path) -> None:
    for version, rows in (("1.0.0", 10), ("1.10.0", 6), ("1.9.0", 8), ("2.0.0rc1", 1)):
        folder = tmp_path / "s" / "gemm" / "vllm" / version
        folder.mkdir(parents=True)
        pd.DataFrame({"m": range(rows)}).to_parquet(folder / "gemm_perf.parquet")
    found = tables_of(tmp_path, "s", "vllm", "gemm_perf")
    assert sorted(found) == ["1.0.0", "1.10.0", "1.9.0", "2.0.0rc1"]
    assert newest(found) == "1.10.0"


def test_without_the_extra_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "PACKAGE", "no_such_package")
    with pytest.raises(InputError) as refused:
        measured_tables()
    assert refused.value.key == "operator_costs"
    assert "servefront[silicon]" in str(refused.value.remedy)


@pytest.mark.usefixtures("write")
def test_a_chip_without_tables_is_refused_by_name() -> None:
    with pytest.raises(InputError) as refused:
        measured_kernels(chip("mi300x"))
    assert "mi300x" in str(refused.value.value)


@pytest.mark.usefixtures("write")
def test_costs_without_any_table_are_the_fitted_ones_and_every_operator_says_so() -> None:
    pool = Pool(role="aggregated", chip="h100", tp=1, dp=8, ep=8)
    fitted, measured = both(pool, "deepseek-r1", "vllm")
    np.testing.assert_array_equal(fitted.token_s, measured.token_s)
    np.testing.assert_array_equal(fitted.expert_s, measured.expert_s)
    counts = source_counts(measured.sources)
    assert {"product", "experts", "all-to-all", "decode attention"} <= counts.keys()
    assert all(read == 0 for read, _ in counts.values())
    assert fitted.sources == ()


def both(pool: Pool, name: str, engine: EngineName) -> tuple[StepCosts, StepCosts]:
    """Fitted and measured costs."""
    asked = (model(name), chip(pool.chip), pool, Precision(), engine, None, "")
    return step_costs(*asked, "fitted"), step_costs(*asked, "measured")


@needs_extra
def test_steps_from_measured_tables_are_near_those_from_the_fit() -> None:
    fitted, measured = both(Pool(role="aggregated", chip="h200", tp=4), "llama-3.3-70b", "vllm")
    assert (fitted.token_s != measured.token_s).any()
    np.testing.assert_allclose(measured.token_s, fitted.token_s, rtol=0.2)
    assert all(source.measured for source in measured.sources)


@needs_extra
def test_experts_attention_and_exchanges_are_read_for_a_sparse_model() -> None:
    pool = Pool(role="aggregated", chip="b200", tp=8)
    fitted, measured = both(pool, "deepseek-r1", "sglang")
    counts = source_counts(measured.sources)
    assert counts["experts"] == counts["all-reduce"] == counts["decode attention"] == (1, 0)
    ratio = measured.expert_s[:, 1:] / fitted.expert_s[:, 1:]
    assert 0.5 < np.median(ratio) < 2.0
