"""Fitted kernels: their tables, the laws they keep, and their errors on shapes left out."""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.interpolate import RegularGridInterpolator

from objectives.cost.chip_efficiency import load_efficiency
from objectives.cost.fitted import expert_kernels, gemm_kernels, in_service_s
from objectives.cost.fitted_attention import decode_law, prefill_pair_s
from objectives.cost.kernel_tables import (
    FOLDER,
    FittedKernel,
    LogTable,
    interpolate,
    kernel_sets,
    kernels_of,
    load_kernels,
)
from objectives.cost.kernel_work import (
    Work,
    decode_attention_work,
    experts_work,
    gemm_work,
    latent_decode_work,
    prefill_attention_work,
)
from objectives.cost.machine import Machine, machine_of
from scripts.operator_report import SAMPLED, sound
from scripts.operator_rows import CHIPS, FORMATS, fold_of
from spaces.catalog import chip
from spaces.chip import ChipSpec
from spaces.model import GqaAttention
from spaces.plan import EngineName
from spaces.precision import Dtype

Kernel = Mapping[Hashable, Any]

TOKENS = np.array([1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0, 16384.0])
SKEW = {"balanced": 0, "power_law_1.01": 1, "power_law_1.2": 2}


def test_interpolation_agrees_with_scipy_between_knots_and_stays_flat_beyond() -> None:
    rng = np.random.default_rng(0)
    knots = [np.array([0.0, 1.0, 4.0]), np.array([-2.0, 0.0, 1.0, 2.0]), np.array([0.0, 3.0])]
    values = rng.normal(size=(3, 4, 2))
    oracle = RegularGridInterpolator(tuple(knots), values)
    points = rng.uniform([-1, -3, -1], [5, 3, 4], size=(50, 3))
    clipped = np.clip(points, [0, -2, 0], [4, 2, 3])
    found = interpolate(values, knots, list(points.T))
    assert found == pytest.approx(oracle(clipped))
    one = interpolate(values, knots, [points[0, 0], points[:, 1], points[0, 2]])
    mixed = np.column_stack(
        [np.full(50, clipped[0, 0]), clipped[:, 1], np.full(50, clipped[0, 2])]
    )
    assert one == pytest.approx(oracle(mixed))


def test_a_table_scales_the_roofline() -> None:
    table = LogTable(("m",), (np.array([0.0, 2.0]),), np.array([0.0, np.log(4.0)]))
    kernel = FittedKernel("gemm", "vllm", "k", "bfloat16", "", 1, 1e-6, (table,))
    work = Work(np.array([3e-6, 3e-6]), np.array([4e-6, 4e-6]), {"m": np.array([0.0, 1.0])})
    bounds = (3**4 + 4**4) ** 0.25 * 1e-6
    assert kernel.seconds(work) == pytest.approx([bounds + 1e-6, 2 * (bounds + 1e-6)])


def test_work_of_products_and_attention_by_hand() -> None:
    h100 = chip("h100")
    product = gemm_work(h100, 2.0, 3000.0, 1000.0, "fp8")
    assert product.multiply_s == pytest.approx(12e6 / h100.peak_flops("fp8"))
    moved = 3e6 * (1 + 4 / 128**2) + 2 * (1000 + 2 * 3000)
    assert product.move_s == pytest.approx(moved / h100.hbm_bytes_per_s)
    sizes = {"heads": 8.0, "kv_heads": 2.0, "head_dim": 128.0}
    decode = decode_attention_work(h100, 3.0, 100.0, kv_bytes=1.0, window=40.0, **sizes)
    assert decode.move_s == pytest.approx(
        3 * (40 * 2 * 2 * 128 + 8 * 128 * 4) / h100.hbm_bytes_per_s
    )
    prefill = prefill_attention_work(h100, 1.0, 5.0, window=2.0, **sizes)
    assert prefill.multiply_s == pytest.approx(4 * 9 * 8 * 128 / h100.peak_flops("bf16"))
    latent = latent_decode_work(h100, 1.0, 10.0, heads=16.0, kv_bytes=2.0)
    assert latent.multiply_s == pytest.approx(2 * 10 * 16 * 1088 / h100.peak_flops("bf16"))


def test_experts_read_distinct_weights_and_multiply_rows() -> None:
    b200 = chip("b200")
    work = experts_work(
        *(b200, "fp8", 1.0),
        experts=256.0,
        top_k=8.0,
        ep=8.0,
        width=4096.0,
        inner=512.0,
        skew=0.0,
    )
    weights = 3 * 4096 * 512
    assert work.multiply_s == pytest.approx(2 * weights / b200.peak_flops("fp8"))
    moved = weights * (1 + 4 / 128**2) + 4096 * 3 + 4 * 512
    assert work.move_s == pytest.approx(moved / b200.hbm_bytes_per_s)


@pytest.mark.parametrize("name", kernel_sets())
def test_every_file_says_what_made_it(name: str) -> None:
    data = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    assert data["source"].startswith("operator tables of aiconfigurator-core 0.12.0")
    assert data["date"] == "2026-12-01"
    assert data["command"] == "python -m scripts.fit_operators WHEEL"
    assert len(data["fingerprint"]) == 64
    for kernel in load_kernels(name).kernels:
        assert kernel.rows > 300
        assert kernel.floor_s > 0
        assert all(np.isfinite(table.values).all() for table in kernel.tables)
    assert {k.op for k in load_kernels(name).kernels} >= {"gemm", "experts", "decode_attention"}


def test_chips_of_the_catalogue_without_kernels_keep_their_fractions() -> None:
    assert kernel_sets() == sorted(CHIPS.values())
    assert kernels_of(chip("mi300x")) is None
    own = kernels_of(chip("a100"))
    assert own is not None
    assert own.chip == "a100"


@pytest.mark.parametrize("name", kernel_sets())
@pytest.mark.parametrize("dtype", ["bf16", "fp8", "nvfp4", "mxfp4", "int4"])
def test_products_keep_their_bounds_and_grow_in_the_large(name: str, dtype: Dtype) -> None:
    machine = machine_of(chip(name), "vllm")
    kernels = gemm_kernels(machine, dtype)
    assert kernels
    for n, k in product([1024.0, 7168.0, 28672.0], [2048.0, 8192.0]):
        work = gemm_work(machine.chip, TOKENS, n, k, dtype)
        seconds = in_service_s(machine, kernels, work)
        assert (seconds > np.maximum(work.multiply_s, work.move_s)).all()
        assert seconds[-1] > 3 * seconds[-3]
        # Blocks of fp8 are scaled in software on L40S and RTX PRO 6000: a tenth of the peak.
        assert seconds[-1] < 10 * np.asarray(work.multiply_s)[-1]


def _borrowing(name: str, engine: EngineName) -> Machine:
    """A chip as if it had no fractions of its own."""
    machine = machine_of(chip(name), engine)
    return replace(machine, achieved=load_efficiency("generic"))


def test_an_engine_has_its_own_experts_and_a_foreign_one_all() -> None:
    own = expert_kernels(_borrowing("l40s", "sglang"), "bf16")
    assert {kernel.engine for kernel in own} == {"sglang"}
    foreign = expert_kernels(_borrowing("l40s", "atom"), "bf16")
    assert {kernel.engine for kernel in foreign} == {"sglang", "trtllm", "vllm"}
    assert not any("nongated" in kernel.kernel for kernel in foreign)
    assert expert_kernels(machine_of(chip("b200"), "sglang"), "bf16") == ()


def test_attention_of_a_chip_with_borrowed_fractions_is_its_own() -> None:
    """A100: 2,039 GB/s, of which FlashAttention reads two thirds to nearly all."""
    group = GqaAttention(layers=1, heads=64, kv_heads=8, head_dim=128)
    machine = _borrowing("a100", "vllm")
    law = decode_law(machine, group, 1, "bf16")
    assert law is not None
    call_s, token_s = law
    assert 1e-6 < call_s < 50e-6
    assert 1.0 < token_s / (2 * 8 * 128 * 2 / 2039e9) < 1.6
    pair_s = prefill_pair_s(machine, group, 1, "bf16")
    assert pair_s is not None
    assert 0.3 < group.flops_per_pair / 312e12 / pair_s < 0.8
    assert decode_law(machine_of(chip("b200"), "vllm"), group, 1, "bf16") is None
    assert decode_law(machine_of(chip("mi300x"), "vllm"), group, 1, "bf16") is None


@pytest.fixture(scope="module")
def unseen(data_dir: Path) -> pd.DataFrame:
    """Sampled measured rows whose shape no shipped table has seen, with their best kernel's error.

    A sample names its engine and format, and mostly its library kernel; where it does not, the
    kernels of the engine are all candidates for what ran, so the nearest counts.
    """
    path = data_dir / "peer" / "aiconfigurator" / "op_latency_samples.csv"
    rows = sound(pd.read_csv(path, low_memory=False))
    rows = rows[rows["system"].isin(list(CHIPS)) & rows["op"].isin(list(SAMPLED.values()))]
    found = []
    for row in rows.to_dict("records"):
        op = next(ours for ours, theirs in SAMPLED.items() if theirs == row["op"])
        if fold_of(_shape(op, row)) != 0:
            continue
        error = _error(op, row)
        if error is not None:
            found.append({"op": op, "error": error})
    return pd.DataFrame(found)


def _shape(op: str, row: Kernel) -> tuple[object, ...]:
    """The columns that are left out together, as the fit names them."""
    if op == "gemm":
        return row["n"], row["k"]
    if op == "experts":
        keys = ("hidden", "inter", "topk", "num_experts", "moe_tp", "moe_ep")
        return *(row[key] for key in keys), SKEW[str(row["distribution"])]
    if op == "latent_decode":
        return row["num_heads"], row["past_kv"]
    if op == "latent_prefill":
        return row["num_heads"], row["q_len"]
    return row["num_heads"], row["num_kv_heads"], row["head_dim"], 0


def _error(op: str, row: Kernel) -> float | None:
    spec = chip(CHIPS[str(row["system"])])
    dtype = str(row["dtype"])
    kv = str(row["kv_dtype"]) if "attention" in op or "latent" in op else ""
    mine = [k for k in load_kernels(spec.name).find(op, dtype, kv) if k.engine == row["backend"]]
    named = [kernel for kernel in mine if kernel.kernel == row["kernel"]]
    if str(row["kernel"]) != "nan" and not named:
        return None
    if not mine or dtype not in FORMATS:
        return None
    work = _work(op, spec, FORMATS[dtype], kv, row)
    us = [float(kernel.seconds(work)) * 1e6 for kernel in named or mine]
    return min(abs(one / float(str(row["latency_us"])) - 1) for one in us)


def _work(op: str, spec: ChipSpec, dtype: Dtype, kv: str, row: Kernel) -> Work:
    def at(name: str) -> float:
        return float(str(row[name]))

    kv_bytes = 1.0 if kv == "fp8" else 2.0
    if op == "gemm":
        return gemm_work(spec, at("m"), at("n"), at("k"), dtype)
    if op == "experts":
        return experts_work(
            *(spec, dtype, at("num_tokens")),
            experts=at("num_experts"),
            top_k=at("topk"),
            ep=at("moe_ep"),
            width=at("hidden"),
            inner=at("inter") / at("moe_tp"),
            skew=float(SKEW[str(row["distribution"])]),
        )
    heads = at("num_heads")
    if op == "latent_decode":
        context = at("past_kv") + 1
        return latent_decode_work(spec, at("batch"), context, heads=heads, kv_bytes=kv_bytes)
    if op == "latent_prefill":
        return prefill_attention_work(
            *(spec, at("batch"), at("q_len")),
            heads=heads,
            kv_heads=heads,
            head_dim=192.0,
            value_dim=128.0,
        )
    kv_heads, head_dim = at("num_kv_heads"), at("head_dim")
    if op == "prefill_attention":
        return prefill_attention_work(
            *(spec, at("batch"), at("q_len")), heads=heads, kv_heads=kv_heads, head_dim=head_dim
        )
    return decode_attention_work(
        *(spec, at("batch"), at("past_kv") + 1),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        kv_bytes=kv_bytes,
    )


def test_shapes_no_fit_has_seen_are_within_five_percent(unseen: pd.DataFrame) -> None:
    assert len(unseen) > 1000
    assert unseen["error"].median() < 0.05


@pytest.mark.parametrize(
    ("op", "bound"),
    [("gemm", 0.05), ("experts", 0.08), ("decode_attention", 0.04), ("prefill_attention", 0.04)],
)
def test_unseen_shapes_by_operator(unseen: pd.DataFrame, op: str, bound: float) -> None:
    errors = unseen.loc[unseen["op"] == op, "error"]
    assert len(errors) > 50
    assert errors.median() < bound
