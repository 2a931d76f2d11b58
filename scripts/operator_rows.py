"""Measured kernel rows of the aiconfigurator-core wheel, one group for each fitted kernel."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from pathlib import Path
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pandas as pd

from objectives.cost.benchmark_work import (
    decode_attention_work,
    experts_work,
    latent_decode_work,
    prefill_attention_work,
)
from objectives.cost.kernel_work import Work, gemm_work
from objectives.cost.silicon import FORMATS, SYSTEMS, newest, tables_of
from spaces.chip import ChipSpec
from spaces.precision import Dtype

FOLDS = 5
CHIPS = {system: name for name, system in SYSTEMS.items()}
KV_BYTES = {"bfloat16": 2.0, "fp8": 1.0}
_SKEW = {"balanced": 0.0, "power_law_1.01": 1.0, "power_law_1.2": 2.0}
_DATA = "aiconfigurator_core/systems/data/"


@dataclass(frozen=True, slots=True)
class Source:
    """How one kind of table is read: file, format columns, shape columns, work."""

    op: str
    file: str
    dtype: str
    kv: str
    shape: tuple[str, ...]
    point: tuple[str, ...]
    work: Callable[[ChipSpec, Dtype, float, pd.DataFrame], Work]
    minimum_rows: int


@dataclass(frozen=True, slots=True)
class Group:
    """Rows of one kernel: `frame` has its shape columns, `us`, and the fold of the whole shape."""

    op: str
    chip: str
    engine: str
    kernel: str
    dtype: str
    kv: str
    frame: pd.DataFrame
    work: Work

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the rows in order."""
        text = self.frame.to_csv(index=False).encode()
        return hashlib.sha256(text).hexdigest()


def groups(
    wheel: Path, system: str, chip: ChipSpec, left_out: dict[str, int]
) -> Iterator[tuple[Source, Group]]:
    """All groups of a chip, in order; rows not taken are counted in `left_out` by reason."""
    with zipfile.ZipFile(wheel) as archive:
        data = zipfile.Path(archive, _DATA)
        for source in SOURCES:
            for engine in ("sglang", "trtllm", "vllm"):
                frame = _newest(data, source, system, engine, left_out)
                if frame is not None:
                    yield from _split(source, chip, engine, frame, left_out)


def fold_of(shape: tuple[object, ...]) -> int:
    """The fold of a whole shape, the same wherever and whenever it is asked.

    >>> 0 <= fold_of((4096, 7168)) < FOLDS
    True
    """
    return crc32("x".join(f"{float(str(value)):g}" for value in shape).encode()) % FOLDS


def _newest(
    data: Traversable, source: Source, system: str, engine: str, left_out: dict[str, int]
) -> pd.DataFrame | None:
    """The latest version's table; the rows of the others are counted."""
    tables = tables_of(data, system, engine, source.file)
    if not tables:
        return None
    chosen = newest(tables)
    for version, table in tables.items():
        if version != chosen:
            _count(left_out, "of another engine version", len(table))
    return tables[chosen]


def _split(
    source: Source, chip: ChipSpec, engine: str, table: pd.DataFrame, left_out: dict[str, int]
) -> Iterator[tuple[Source, Group]]:
    if "window_size" in source.shape and "window_size" not in table:
        table = table.assign(window_size=0)
    keys = [source.dtype, *([source.kv] if source.kv else []), "kernel_source"]
    for key, rows in table.groupby(keys, sort=True):
        dtype, kernel = str(key[0]), str(key[-1])
        kv = str(key[1]) if source.kv else ""
        reason = _reason(source, chip, engine, dtype, len(rows))
        if reason:
            _count(left_out, reason, len(rows))
            continue
        columns = [*source.shape, *source.point]
        frame = rows.groupby(columns, sort=True)["latency"].median().reset_index(name="ms")
        frame["us"] = frame.pop("ms") * 1e3
        frame = frame[frame["us"] > 0].reset_index(drop=True)
        shapes = frame[list(source.shape)].itertuples(index=False, name=None)
        frame["fold"] = [fold_of(numbers(shape)) for shape in shapes]
        work = source.work(chip, FORMATS[dtype], KV_BYTES.get(kv, 2.0), frame)
        yield source, Group(source.op, chip.name, engine, kernel, dtype, kv, frame, work)


def numbers(shape: tuple[object, ...]) -> tuple[object, ...]:
    return tuple(_SKEW.get(value, value) if isinstance(value, str) else value for value in shape)


def _reason(source: Source, chip: ChipSpec, engine: str, dtype: str, rows: int) -> str:
    if dtype not in FORMATS:
        return f"of a weight format we do not have ({dtype})"
    if source.op == "gemm" and (engine, dtype) == ("vllm", "fp8_block"):
        return "vLLM fp8_block products, which hold host launch time"
    if not chip.peak_flops(chip.compute_dtype(FORMATS[dtype])):
        return "of a chip without a peak for the format"
    return (
        f"of kernels with fewer than {source.minimum_rows} rows"
        if rows < source.minimum_rows
        else ""
    )


def _count(left_out: dict[str, int], reason: str, rows: int) -> None:
    left_out[reason] = left_out.get(reason, 0) + rows


def _columns(frame: pd.DataFrame, *names: str) -> list[npt.NDArray[np.float64]]:
    return [frame[name].to_numpy(dtype=np.float64) for name in names]


def _gemm(chip: ChipSpec, dtype: Dtype, _: float, frame: pd.DataFrame) -> Work:
    m, n, k = _columns(frame, "m", "n", "k")
    return gemm_work(chip, m, n, k, dtype)


def _experts(chip: ChipSpec, dtype: Dtype, _: float, frame: pd.DataFrame) -> Work:
    tokens, width, inner, top_k, experts, tp, ep = _columns(
        frame,
        *("num_tokens", "hidden_size", "inter_size", "topk", "num_experts"),
        *("moe_tp_size", "moe_ep_size"),
    )
    (skew,) = _columns(frame.assign(skew=frame["distribution"].map(_SKEW)), "skew")
    return experts_work(
        chip,
        dtype,
        tokens,
        experts=experts,
        top_k=top_k,
        ep=ep,
        width=width,
        inner=inner / tp,
        skew=skew,
    )


def _decode(chip: ChipSpec, _: Dtype, kv_bytes: float, frame: pd.DataFrame) -> Work:
    batch, step, heads, kv_heads, head_dim, window = _columns(
        frame, "batch_size", "step", "num_heads", "num_key_value_heads", "head_dim", "window_size"
    )
    return decode_attention_work(
        chip,
        batch,
        step + 1.0,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        kv_bytes=kv_bytes,
        window=window,
    )


def _prefill(chip: ChipSpec, _: Dtype, __: float, frame: pd.DataFrame) -> Work:
    batch, length, heads, kv_heads, head_dim, window = _columns(
        frame, "batch_size", "isl", "num_heads", "num_key_value_heads", "head_dim", "window_size"
    )
    return prefill_attention_work(
        chip, batch, length, heads=heads, kv_heads=kv_heads, head_dim=head_dim, window=window
    )


def _latent_decode(chip: ChipSpec, _: Dtype, kv_bytes: float, frame: pd.DataFrame) -> Work:
    batch, step, heads = _columns(frame, "batch_size", "step", "num_heads")
    return latent_decode_work(chip, batch, step + 1.0, heads=heads, kv_bytes=kv_bytes)


def _latent_prefill(chip: ChipSpec, _: Dtype, __: float, frame: pd.DataFrame) -> Work:
    batch, length, heads = _columns(frame, "batch_size", "isl", "num_heads")
    return prefill_attention_work(
        chip, batch, length, heads=heads, kv_heads=heads, head_dim=192.0, value_dim=128.0
    )


_HEADS = ("num_heads", "num_key_value_heads", "head_dim", "window_size")
_MOE = ("hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size")

SOURCES = (
    Source("gemm", "gemm_perf", "gemm_dtype", "", ("n", "k"), ("m",), _gemm, 5000),
    Source(
        *("experts", "moe_perf", "moe_dtype", ""),
        *((*_MOE, "distribution"), ("num_tokens",), _experts, 1500),
    ),
    Source(
        *("decode_attention", "generation_attention_perf", "attn_dtype", "kv_cache_dtype"),
        *(_HEADS, ("batch_size", "step"), _decode, 1500),
    ),
    Source(
        *("prefill_attention", "context_attention_perf", "attn_dtype", "kv_cache_dtype"),
        *(_HEADS, ("batch_size", "isl"), _prefill, 1500),
    ),
    Source(
        *("latent_decode", "generation_mla_perf", "mla_dtype", "kv_cache_dtype"),
        *(("num_heads", "step"), ("batch_size",), _latent_decode, 500),
    ),
    Source(
        *("latent_prefill", "context_mla_perf", "mla_dtype", "kv_cache_dtype"),
        *(("num_heads", "isl"), ("batch_size",), _latent_prefill, 500),
    ),
)
