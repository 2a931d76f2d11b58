"""Fitted kernels: their tables, the laws they keep, and their errors on shapes left out."""

from __future__ import annotations

import json
from itertools import product

import numpy as np
import pytest
from scipy.interpolate import RegularGridInterpolator

from objectives.cost.benchmark_work import (
    decode_attention_work,
    experts_work,
    latent_decode_work,
    prefill_attention_work,
)
from objectives.cost.fitted import gemm_kernels, in_service_s
from objectives.cost.kernel_tables import (
    FOLDER,
    FittedKernel,
    LogTable,
    interpolate,
    kernel_sets,
    kernels_of,
    load_kernels,
)
from objectives.cost.kernel_work import Work, gemm_work
from objectives.cost.machine import machine_of
from scripts.operator_rows import CHIPS
from spaces.catalog import chip
from spaces.precision import Dtype

TOKENS = np.array([1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0, 16384.0])


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
    assert {k.op for k in load_kernels(name).kernels} == {"gemm"}


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
