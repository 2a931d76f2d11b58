"""Operator times against single measured kernels (tables of aiconfigurator-core 0.12.0).

The fractions of our tables are reduced from the same collection, so this checks their form: that
few numbers give back the times of many shapes.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from objectives.cost.context import context_seconds
from objectives.cost.layers import attention_layer_s
from objectives.cost.machine import Machine, machine_of
from objectives.cost.operators import gemm_s, routed_experts_s
from spaces.chip import ChipSpec
from spaces.model import MlaAttention, ModelSpec, MoeFfn
from spaces.plan import Pool
from spaces.precision import Dtype, KvDtype

Kernel = Mapping[Hashable, Any]

FORMATS: dict[str, Dtype] = {"bfloat16": "bf16", "fp8_block": "fp8", "nvfp4": "nvfp4"}
KV_FORMATS: dict[str, KvDtype] = {"bfloat16": "bf16", "fp8": "fp8"}


@pytest.fixture(scope="module")
def kernels(data_dir: Path, chips: dict[str, ChipSpec]) -> pd.DataFrame:
    """Measured kernels of chips we know, `chip` and `us` added."""
    table = pd.read_csv(
        data_dir / "peer" / "aiconfigurator" / "op_latency_samples.csv", low_memory=False
    )
    table["chip"] = table["system"].str.removesuffix("_sxm")
    sound = (table["provenance"] == "measured_table") & table["suspect"].isna()
    return table[sound & table["chip"].isin(list(chips)) & table["dtype"].isin(list(FORMATS))]


def _machine(chips: dict[str, ChipSpec], kernel: Kernel) -> Machine:
    return machine_of(chips[kernel["chip"]], kernel["backend"])


def _tokens(count: float) -> np.typing.NDArray[np.float64]:
    return np.array([float(count)])


def _median_size(predicted_s: list[float], rows: list[dict[Hashable, Any]]) -> float:
    ratios = [1e6 * s / row["latency_us"] for s, row in zip(predicted_s, rows, strict=True)]
    return float(np.median(np.abs(np.array(ratios) - 1)))


def test_products(kernels: pd.DataFrame, chips: dict[str, ChipSpec]) -> None:
    rows = kernels[kernels["op"] == "gemm"].to_dict("records")
    predicted = [
        float(
            gemm_s(
                _machine(chips, row), _tokens(row["m"]), row["n"], row["k"], FORMATS[row["dtype"]]
            )[0]
        )
        for row in rows
    ]
    assert len(rows) > 300
    assert _median_size(predicted, rows) < 0.15


def test_routed_experts_cut_over_chips(kernels: pd.DataFrame, chips: dict[str, ChipSpec]) -> None:
    whole = kernels[(kernels["op"] == "moe") & (kernels["moe_ep"] == 1)]
    rows = whole.to_dict("records")
    predicted = [_experts_s(_machine(chips, row), row) for row in rows]
    assert len(rows) > 100
    assert _median_size(predicted, rows) < 0.25


def _experts_s(machine: Machine, row: Kernel) -> float:
    moe = MoeFfn(
        layers=1,
        routed_experts=int(row["num_experts"]),
        top_k=int(row["topk"]),
        expert_intermediate_size=int(row["inter"]),
    )
    pool = Pool(role="decode", chip=row["chip"], tp=int(row["moe_tp"]))
    tokens, dtype = _tokens(row["num_tokens"]), FORMATS[row["dtype"]]
    return float(routed_experts_s(machine, moe, int(row["hidden"]), pool, dtype, tokens)[0])


def test_whole_layers_of_latent_attention_in_decode(
    kernels: pd.DataFrame, chips: dict[str, ChipSpec], models: dict[str, ModelSpec]
) -> None:
    mla = models["deepseek"].attention[0]
    assert isinstance(mla, MlaAttention)
    rows = kernels[kernels["op"] == "mla_generation_module"].to_dict("records")
    predicted = [_latent_layer_s(_machine(chips, row), mla, row) for row in rows]
    assert len(rows) > 100
    assert _median_size(predicted, rows) < 0.25


def _latent_layer_s(machine: Machine, mla: MlaAttention, row: Kernel) -> float:
    tp = mla.heads // int(row["num_heads"])
    found = context_seconds(machine, mla, tp, KV_FORMATS[row["kv_dtype"]])
    products = attention_layer_s(
        machine, mla, 7168, tp, FORMATS[row["dtype"]], _tokens(row["batch"])
    )
    seen = row["batch"] * (row["past_kv"] + 1)
    return float(products[0] + found.decode_base + seen * found.decode_token)
