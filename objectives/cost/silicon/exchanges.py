"""Exchanges between chips read from measured tables."""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

import numpy as np
import pandas as pd

from objectives.cost.curves import MeasuredCurve
from objectives.cost.silicon.tables import newest_table
from spaces.precision import Dtype

_ELEMENT_BYTES = 2.0  # messages of the tables are counted in elements of 16 bits
# What dispatches are called whose tokens are multiplied in a format.
_DISPATCHED: dict[Dtype, tuple[str, ...]] = {
    "bf16": ("bfloat16", "default"),
    "fp8": ("fp8", "default"),
    "nvfp4": ("nvfp4", "fp4", "fp8", "default"),
    "mxfp4": ("fp8", "default"),
    "int4": ("bfloat16", "default"),
}
# Ranks of one node in tables that count nodes.
_NODE = {"gb200": 4, "gb300": 4}
_PLAIN_NODE = 8


@lru_cache(maxsize=512)
def all_reduce_curve(chip: str, engine: str, ranks: int) -> MeasuredCurve | None:
    """The engine's kernel inside a CUDA graph, or NCCL's where that is faster."""
    own = newest_table(chip, engine, "custom_allreduce_perf")
    found = []
    if own is not None:
        launched = own.rows.get("backend", pd.Series("", index=own.rows.index)).fillna("")
        graphed = own.rows[~launched.str.endswith("eager")]
        found.append((graphed[graphed["num_gpus"] == ranks], own.name))
    return _fastest([*found, *_nccl(chip, "all_reduce", ranks)])


@lru_cache(maxsize=512)
def gather_curve(
    chip: str, kind: Literal["all_gather", "reduce_scatter"], ranks: int
) -> MeasuredCurve | None:
    """NCCL's kernel, by bytes of the whole."""
    return _fastest(list(_nccl(chip, kind, ranks)))


def _nccl(chip: str, kind: str, ranks: int) -> list[tuple[pd.DataFrame, str]]:
    table = newest_table(chip, "nccl", "nccl_perf")
    if table is None:
        return []
    rows = table.rows
    mine = (rows["op_name"] == kind) & (rows["nccl_dtype"] == "half") & (rows["num_gpus"] == ranks)
    return [(rows[mine], table.name)]


def _fastest(found: list[tuple[pd.DataFrame, str]]) -> MeasuredCurve | None:
    """The faster library at each size that any of them was measured at."""
    curves = [_curve(rows, name) for rows, name in found if not rows.empty]
    if not curves:
        return None
    sizes = np.unique(np.concatenate([curve.sizes for curve in curves]))
    seconds = np.min([curve.at(sizes) for curve in curves], axis=0)
    return MeasuredCurve(sizes, seconds, " or ".join(curve.origin for curve in curves))


def _curve(rows: pd.DataFrame, name: str) -> MeasuredCurve:
    by_size = rows.groupby("message_size")["latency"].min()
    by_size = by_size[by_size > 0]
    sizes = by_size.index.to_numpy(dtype=np.float64) * _ELEMENT_BYTES
    rising = np.maximum.accumulate(by_size.to_numpy(dtype=np.float64) * 1e-3)
    return MeasuredCurve(sizes, rising, name)


@lru_cache(maxsize=512)
def all_to_all_curve(
    *, chip: str, engine: str, ep: int, width: int, top_k: int, dtype: Dtype
) -> MeasuredCurve | None:
    """Dispatch and combine over `ep` ranks by tokens of a rank, the faster of the kernel kinds.

    None where no kernel of this size, width and number of experts a token was measured.
    """
    rows = _deepep_rows if engine == "sglang" else _kernel_rows
    found = rows(chip, engine, ep, dtype)
    if found is None:
        return None
    table, name = found
    mine = table[(table["width"] == width) & (table["top_k"] == top_k)]
    if mine.empty:
        return None
    by_kind = mine.pivot_table(index="tokens", columns="kind", values="us", aggfunc="min")
    best = by_kind.min(axis=1)
    seconds = np.maximum.accumulate(best.to_numpy(dtype=np.float64) * 1e-6)
    return MeasuredCurve(best.index.to_numpy(dtype=np.float64), seconds, name)


def _kernel_rows(chip: str, engine: str, ep: int, dtype: Dtype) -> tuple[pd.DataFrame, str] | None:
    """vLLM's and TensorRT-LLM's kernels: `kind`, `width`, `top_k`, `tokens`, `us` of both ways.

    Outputs come back in bf16; TensorRT-LLM's tables have a combine for each format sent.
    """
    table = newest_table(chip, engine, "moe_a2a_perf")
    if table is None:
        return None
    rows = table.rows[table.rows["ep_size"] == ep]
    keys = ["comm_backend", "hidden_size", "topk", "num_tokens"]
    sent = _first_format(rows[rows["phase"] == "dispatch"], _DISPATCHED[dtype])
    back = _first_format(rows[rows["phase"] == "combine"], ("bfloat16", "default"))
    ways = [rows.groupby(keys)["latency"].min() for rows in (sent, back)]
    joined = pd.concat(ways, axis=1, join="inner", keys=["sent", "back"]).reset_index()
    joined["us"] = joined["sent"] + joined["back"]
    return _named(joined, "comm_backend", "num_tokens", "topk"), table.name


def _first_format(rows: pd.DataFrame, formats: tuple[str, ...]) -> pd.DataFrame:
    present = set(rows["comm_dtype"])
    chosen = next((one for one in formats if one in present), None)
    return rows[rows["comm_dtype"] == chosen]


def _deepep_rows(chip: str, engine: str, ep: int, _: Dtype) -> tuple[pd.DataFrame, str] | None:
    """SGLang's DeepEP of both kinds, fp8 sent; the best number of multiprocessors counts."""
    frames, names, node = [], [], _NODE.get(chip, _PLAIN_NODE)
    for file, kind in (
        ("wideep_deepep_ll_perf", "low latency"),
        ("wideep_deepep_normal_perf", "high throughput"),
    ):
        table = newest_table(chip, engine, file)
        if table is not None:
            rows = table.rows[table.rows["node_num"] * node == ep]
            frames.append(rows.assign(kind=kind, us=_both_ways_us(rows)))
            names.append(table.name)
    if not frames:
        return None
    return _named(pd.concat(frames), "kind", "num_token", "num_topk"), names[0]


def _both_ways_us(rows: pd.DataFrame) -> pd.Series[float]:
    if "combine_avg_t_us" in rows:
        return rows["dispatch_avg_t_us"] + rows["combine_avg_t_us"]
    parts = ("dispatch_transmit_us", "dispatch_notify_us")
    sent = sum((rows[part] for part in parts), start=0.0 * rows["combine_transmit_us"])
    return sent + rows["combine_transmit_us"] + rows["combine_notify_us"]


def _named(rows: pd.DataFrame, kind: str, tokens: str, top_k: str) -> pd.DataFrame:
    names = {kind: "kind", tokens: "tokens", top_k: "top_k", "hidden_size": "width"}
    return rows.rename(columns=names)[["kind", "width", "top_k", "tokens", "us"]]
