"""Operators read from measured tables against rows sampled from them by another reader."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from objectives.cost.chip_efficiency import load_efficiency
from objectives.cost.curves import MeasuredCurve
from objectives.cost.silicon import SYSTEMS, tables
from objectives.cost.silicon.attention import (
    AttentionLaw,
    decode_law,
    latent_decode_law,
    prefill_law,
)
from objectives.cost.silicon.exchanges import all_reduce_curve, gather_curve
from objectives.cost.silicon.experts import ExpertLayout, experts_curve
from objectives.cost.silicon.tables import FORMATS, newest_table
from scripts.operator_report import sound
from spaces.catalog import chip
from spaces.precision import KvDtype

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec(tables.PACKAGE) is None, reason="needs the extra silicon"
)
CHIPS = {system: name for name, system in SYSTEMS.items()}
KV: dict[str, KvDtype] = {"bfloat16": "bf16", "fp8": "fp8"}
Read = Callable[[Any, str], float | None]


@pytest.fixture(scope="module")
def samples(data_dir: Path) -> pd.DataFrame:
    path = data_dir / "peer" / "aiconfigurator" / "op_latency_samples.csv"
    rows = sound(pd.read_csv(path, low_memory=False))
    return rows[rows["system"].isin(CHIPS)].assign(chip=rows["system"].map(CHIPS))


def errors(rows: pd.DataFrame, file: str, read: Read) -> pd.Series[float]:
    """|read / sampled - 1| of the rows of the newest version; rows that are not read are left."""

    def answered() -> Iterator[float]:
        for row in rows.itertuples():
            engine = str(row.backend)
            table = newest_table(str(row.chip), engine, file)
            if table is None or table.version != row.version:
                continue
            answer = read(row, engine)
            if answer is not None:
                yield abs(answer * 1e6 / float(str(row.latency_us)) - 1)

    found = pd.Series(list(answered()), dtype=np.float64)
    assert len(found) > 30
    return found


def at(curve: MeasuredCurve | None, size: float) -> float | None:
    return None if curve is None else float(curve.at(np.array([size]))[0])


def test_sums_and_gathers_are_those_of_the_samples(samples: pd.DataFrame) -> None:
    sums = samples[samples["op"] == "custom_allreduce"]
    faster = errors(
        sums,
        "custom_allreduce_perf",
        lambda r, e: at(all_reduce_curve(r.chip, e, int(r.num_gpus)), r.bytes),
    )
    gathers = samples[(samples["op"] == "nccl_all_gather") & (samples["dtype"] == "half")]
    gathered = errors(
        gathers,
        "nccl_perf",
        lambda r, _: at(gather_curve(r.chip, "all_gather", int(r.num_gpus)), r.bytes),
    )
    print(f"sums {faster.median():.1%} of {len(faster)}, gathers {gathered.median():.1%}")
    assert gathered.median() < 0.01
    assert faster.median() < 0.05


def test_experts_of_even_routing_are_those_of_the_samples(samples: pd.DataFrame) -> None:
    rows = samples[(samples["op"] == "moe") & (samples["distribution"] == "balanced")]
    rows = rows[rows["dtype"].isin(["bfloat16", "fp8_block", "nvfp4"])]

    def read(row: Any, engine: str) -> float | None:
        layout = ExpertLayout(
            width=int(row.hidden),
            inner=int(row.inter),
            top_k=int(row.topk),
            experts=int(row.num_experts),
            tp=int(row.moe_tp),
            ep=int(row.moe_ep),
            gated=True,
        )
        curve = experts_curve(chip(row.chip), engine, FORMATS[row.dtype], layout)
        return at(curve, float(row.num_tokens))

    found = errors(rows, "moe_perf", read)
    print(f"experts {found.median():.1%} of {len(found)}")
    assert found.median() < 0.02


def test_laws_of_attention_lie_near_the_samples(samples: pd.DataFrame) -> None:
    def decode(r: Any, engine: str) -> float | None:
        law = decode_law(chip=r.chip, engine=engine, **geometry(r))
        return seconds(law, r.batch, r.batch * (r.past_kv + 1))

    def latent(r: Any, engine: str) -> float | None:
        heads, kv = int(r.num_heads), KV[r.kv_dtype]
        law = latent_decode_law(chip=r.chip, engine=engine, heads=heads, kv=kv)
        return seconds(law, r.batch, r.batch * (r.past_kv + 1))

    def prefill(r: Any, engine: str) -> float | None:
        law = prefill_law(chip=r.chip, engine=engine, **geometry(r))
        return seconds(law, r.batch * r.q_len, r.batch * r.q_len * (r.q_len + 1) / 2)

    for op, read in (
        ("generation_attention", decode),
        ("context_attention", prefill),
        ("generation_mla", latent),
    ):
        rows = samples[(samples["op"] == op) & samples["kv_dtype"].isin(KV)]
        found = errors(rows, f"{op}_perf", read)
        print(f"{op} {found.median():.1%} of {len(found)}")
        assert found.median() < 0.15


def seconds(law: AttentionLaw | None, items: float, units: float) -> float | None:
    return None if law is None else law.call_s + law.item_s * items + law.unit_s * units


def geometry(row: Any) -> dict[str, Any]:
    names = {"heads": "num_heads", "kv_heads": "num_kv_heads", "head_dim": "head_dim"}
    sizes = {key: int(getattr(row, name)) for key, name in names.items()}
    return {**sizes, "window": 0, "kv": KV[row.kv_dtype]}


def test_what_inputs_cost_to_quantise_is_that_of_the_tables() -> None:
    """Finding the scale and converting, medians over 1 to 64 tokens."""
    compared = 0
    for name in SYSTEMS:
        for engine, us in load_efficiency(name).gemm.input_quantisation_us.items():
            seconds = [
                _quantising(name, engine, file) for file in ("computescale", "scale_matrix")
            ]
            assert 1e3 * seconds[0].add(seconds[1]).median() == pytest.approx(us, abs=0.06)
            compared += 1
    assert compared == 12


def _quantising(chip_name: str, engine: str, file: str) -> pd.Series[float]:
    table = newest_table(chip_name, engine, f"{file}_perf")
    assert table is not None
    few = table.rows[table.rows["m"] <= 64]
    return few.groupby(["m", "k"])["latency"].median()
