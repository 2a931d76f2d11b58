"""What kernels achieve of a chip's peaks, read from `efficiency/*.yaml`."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
from pydantic import Field

from objectives.cost.step_costs import Floats
from spaces.chip import Status
from spaces.documents import Document, read_yaml, validated
from spaces.errors import InputError, did_you_mean
from spaces.model import ModelSpec, RecurrentAttention
from spaces.plan import EngineName
from spaces.precision import Dtype, KvDtype

FOLDER = Path(__file__).parent / "efficiency"

Fraction = float
ByTokens = dict[int, float]


class Block(Document):
    """Figures of one kind, with where they are from and how sure they are."""

    source: str
    checked: str
    status: Status
    note: str = ""


class GemmRow(Document):
    """Matrix products of one weight format.

    `stream` is the share of memory bandwidth at which large weights are read, launch apart.
    `memory` and `compute` map token counts to the achieved share of bandwidth and of compute
    peak, each where it is the active bound.
    """

    latency_us: float
    stream: Fraction
    memory: ByTokens
    compute: ByTokens

    def memory_fraction(self, tokens: Floats) -> Floats:
        """Share of memory bandwidth: `stream`, falling with tokens as the measured one does."""
        relative = np.array(list(self.memory.values())) / self.memory[1]
        return self.stream * _along(list(self.memory), relative, tokens)

    def compute_fraction(self, tokens: Floats) -> Floats:
        """Share of the compute peak."""
        return _along(list(self.compute), np.array(list(self.compute.values())), tokens)


class Gemm(Block):
    """Matrix products by weight format.

    `input_quantisation_us` is what an engine's benchmark of products in fp8 with one scale a
    tensor spends on finding the scale of its inputs and converting them.
    """

    formats: dict[Dtype, GemmRow]
    input_quantisation_us: dict[EngineName, float] = Field(default_factory=dict)


class DecodeAttentionRow(Document):
    """Shares of memory bandwidth for 512 MB of KV and more, and for 32 to 128 MB."""

    large: Fraction
    middle: Fraction
    latency_us: float


class DecodeAttention(Block):
    """Grouped-query attention of one token per request, by KV format and engine."""

    kv: dict[KvDtype, dict[EngineName, DecodeAttentionRow]]


class PrefillAttention(Block):
    """Causal attention of a prompt: share of the bf16 peak, by KV format and engine."""

    kv: dict[KvDtype, dict[EngineName, Fraction]]


class MlaDecodeRow(Document):
    """Shares of memory bandwidth (few heads) and of the bf16 peak (many heads)."""

    memory: Fraction
    compute: Fraction
    latency_us: float


class MlaDecode(Block):
    """Latent attention of one token per request, by KV format and engine."""

    kv: dict[KvDtype, dict[EngineName, MlaDecodeRow]]


class ExpertsRow(Document):
    """Grouped products of routed experts of one weight format."""

    memory: Fraction
    compute: Fraction
    latency_us: float
    status: Status | None = None


class TritonExperts(Block):
    """Routed experts of the portable Triton kernel, where it falls behind the chip's own."""

    formats: dict[Dtype, ExpertsRow]


class Experts(Block):
    """Routed experts by weight format; `triton` has those of a kernel library of its own."""

    formats: dict[Dtype, ExpertsRow]
    triton: TritonExperts | None = None


class LinearAttention(Block):
    """Reading and writing a recurrent state in decode."""

    memory: Fraction
    latency_us: float


class SparseAttention(Block):
    """Attention to selected entries, and the index that selects them.

    Kernels fill up the query heads of a rank to `padded_heads`. `index_compute` is the share of
    the peak at which an index scores; its top-k takes `top_k_us` and moves `score_bytes` a score.
    """

    padded_heads: int
    index_compute: Fraction
    top_k_us: float
    score_bytes: float


class AllReduce(Block):
    """Microseconds of a sum over `ranks`, by message size."""

    link_gb_per_s: float
    message_bytes: tuple[int, ...]
    ranks: dict[int, tuple[float, ...]]


class GatherScatter(Block):
    """All-gather and reduce-scatter by ranks: latency in us, bus GB/s at 1, 16 and 512 MiB."""

    link_gb_per_s: float
    all_gather: dict[int, tuple[float, float, float, float]]
    reduce_scatter: dict[int, tuple[float, float, float, float]]


class AllToAllTable(Document):
    """One dispatch and combine kernel over `ep` ranks, by tokens per rank."""

    kernel: Literal["low-latency", "high-throughput", "one-sided"]
    ep: int
    dispatch_bytes_per_element: float
    us: dict[int, tuple[float, float]]


class AllToAll(Block):
    """Kernels that bring tokens to their experts and back, inside a scale-up domain."""

    link_gb_per_s: float
    hidden_size: int
    top_k: int
    tables: tuple[AllToAllTable, ...]


class KernelTime(Block):
    """Factor on the fixed time of every kernel."""

    factor: float = 1.0


class ChipEfficiency(Document):
    """All measured fractions and latencies of one chip."""

    title: str
    like: str = ""
    kernel_time: KernelTime | None = None
    gemm: Gemm
    decode_attention: DecodeAttention
    prefill_attention: PrefillAttention
    mla_decode: MlaDecode
    experts: Experts
    linear_attention: LinearAttention
    sparse_attention: SparseAttention
    all_reduce: AllReduce
    gather_scatter: GatherScatter
    all_to_all: AllToAll


def efficiency_tables() -> list[str]:
    """Names of the tables a chip's `efficiency` may choose from."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


@lru_cache(maxsize=32)
def load_efficiency(name: str) -> ChipEfficiency:
    """The table called `name`; blocks it takes from another chip (`like`) become estimates.

    Raises `InputError` for a name without a table.
    """
    if name not in efficiency_tables():
        raise InputError(
            "the chip's efficiency must name a known table",
            key="efficiency",
            value=name,
            remedy=did_you_mean(name, efficiency_tables()),
        )
    path = FOLDER / f"{name}.yaml"
    data = read_yaml(path)
    if "like" in data:
        data = _borrowed(str(data["like"])) | data
    return validated(ChipEfficiency, data, str(path))


def estimated_blocks(name: str, model: ModelSpec) -> list[str]:
    """Names of the blocks of a table that are estimates and bear on a model; borrowed ones too."""
    return [key for key, one in blocks_for(name, model).items() if one.status == "estimate"]


def blocks_for(name: str, model: ModelSpec) -> dict[str, Block]:
    """The blocks of a table that bear on a model, by name; borrowed ones are estimates."""
    table = load_efficiency(name)
    blocks = {key: getattr(table, key) for key in type(table).model_fields}
    unused = _unused_blocks(model)
    return {k: one for k, one in blocks.items() if isinstance(one, Block) and k not in unused}


def _unused_blocks(model: ModelSpec) -> set[str]:
    """Blocks that the layers of a model never ask for."""
    kinds = {group.kind for group in model.attention}
    sparse = any(
        not isinstance(group, RecurrentAttention) and (group.index or group.kind == "compressed")
        for group in model.attention
    )
    used = {
        "decode_attention": "gqa" in kinds,
        "mla_decode": bool(kinds & {"mla", "compressed"}),
        "linear_attention": bool(kinds & {"kda", "gdn", "mamba"}),
        "sparse_attention": sparse,
        "experts": model.moe is not None,
        "all_to_all": model.moe is not None,
    }
    return {block for block, asked in used.items() if not asked}


Row = TypeVar("Row", bound=Document)


def row_of_engine(rows: Mapping[EngineName, Row], engine: EngineName) -> Row:
    """The engine's own row, else the median over the engines measured, field by field."""
    if engine in rows:
        return rows[engine]
    measured = [row.model_dump() for row in rows.values()]
    medians = {field: statistics.median(row[field] for row in measured) for field in measured[0]}
    return type(next(iter(rows.values()))).model_validate(medians)


def figure_of_engine(figures: Mapping[EngineName, float], engine: EngineName) -> float:
    """The engine's own figure, else the median over the engines measured."""
    return figures.get(engine, statistics.median(figures.values()))


def _borrowed(name: str) -> dict[str, Any]:
    """Blocks of another chip's table, which may borrow in turn, marked as estimates."""
    blocks = read_yaml(FOLDER / f"{name}.yaml")
    if "like" in blocks:
        blocks = _borrowed(str(blocks["like"])) | blocks
    return {
        key: {**block, "status": "estimate"} if isinstance(block, dict) else block
        for key, block in blocks.items()
    }


def _along(points: list[int], values: Floats, tokens: Floats) -> Floats:
    """Linear interpolation over the logarithm of tokens, kept at the ends."""
    return np.interp(np.log2(np.maximum(tokens, 1.0)), np.log2(points), values)
