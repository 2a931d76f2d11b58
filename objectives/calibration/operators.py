"""Factors on single operators' seconds, fitted to measured kernels of a chip.

Every row is predicted by the cost model's own operator as a benchmark would see it: no gaps
between kernels, clocks at their nominal rate, contexts of one length. Of each operator in each
format up to three factors are fitted, on what multiplication, bandwidth and the call itself take,
shrunk towards 1; they are kept where they bring the rows' median error down.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal, cast, get_args

import numpy as np
import pandas as pd

from objectives.calibration.measured_files import Rows
from objectives.calibration.shrunk import Floats, shrunk_fit
from objectives.calibration.steps import chip_named
from objectives.cost.collectives import all_reduce_s, gather_within_s
from objectives.cost.context import context_seconds
from objectives.cost.machine import Machine, machine_of
from objectives.cost.operators import gemm_s, routed_experts_s
from objectives.cost.silicon import FORMATS, SYSTEMS
from objectives.cost.silicon.attention import LATENT
from objectives.cost.tuning import ANY_ENGINE, TERMS, Factors, Operator, operator_path
from spaces import catalog
from spaces.calibration import MeasuredFit
from spaces.model import AttentionGroup, GqaAttention, MlaAttention, MoeFfn
from spaces.plan import EngineName, Pool
from spaces.precision import Dtype, KvDtype

# How far off the cost model's figure may be, as standard deviations of logarithms, and what one
# row says of it: rows of one benchmark err together.
LOG_SD = {"multiply": 0.2, "move": 0.2, "fixed": 0.4}
NOISE = 0.3
_ROWS_OF_A_FIT = 600
_SOUND = ("measured_table", "engine_exact")
_EVEN = ("balanced", "uniform", "")
# A benchmark has no gaps, its clocks are not slowed, and its contexts are equally long.
_BENCHMARK = (("kernels.gap_us", 0.0), ("sustained.compute", 1.0), ("sustained.kv_read", 1.0))
_DTYPES: dict[str, Dtype] = {
    **FORMATS,
    **{name: "bf16" for name in ("bf16", "half", "float16")},
    **{"int4": "int4", "mxfp4": "mxfp4"},
}
_KV: dict[str, KvDtype] = {"bfloat16": "bf16", "bf16": "bf16", "half": "bf16", "fp8": "fp8"}
_CHIPS = {system: name for name, system in SYSTEMS.items()}

Predict = Callable[[Machine, str, pd.DataFrame], Floats]
OfShape = Callable[[Mapping[str, int], pd.DataFrame], Floats]


@dataclass(frozen=True, slots=True)
class Kind:
    """How rows of one `op` are read: their columns, the format they are told apart by, the terms
    that bound them, and the cost model's seconds for them.
    """

    operator: Operator
    columns: tuple[str, ...]
    terms: tuple[str, ...]
    predict: Predict
    form: str = "dtype"
    by_engine: bool = False


@dataclass(frozen=True, slots=True)
class OperatorRows:
    """Rows of one operator in one format on one chip: shape columns and `latency_us`."""

    kind: Kind
    chip: str
    engine: str
    form: str
    frame: pd.DataFrame


def operator_fits(rows: Rows) -> Iterator[tuple[dict[str, float], MeasuredFit]]:
    """For each operator and format of each chip its factors as changes, and how well they fit."""
    for group in operator_rows(rows):
        before, factors = median_error(group, Factors()), fitted_factors(group)
        after = median_error(group, factors)
        kept = after < before
        yield (
            _changes(group, factors) if kept else {},
            MeasuredFit(
                chip=group.chip,
                engine=None if group.engine == ANY_ENGINE else cast(EngineName, group.engine),
                what=f"{group.kind.operator} {group.form}",
                rows=len(group.frame),
                error_before=round(before, 4),
                error_after=round(min(before, after), 4),
            ),
        )


def _changes(group: OperatorRows, factors: Factors) -> dict[str, float]:
    kind = group.kind
    return {
        operator_path(group.chip, kind.operator, group.form, group.engine, term): float(
            f"{getattr(factors, term):.4g}"
        )
        for term in kind.terms
    }


def median_error(group: OperatorRows, factors: Factors) -> float:
    """Median |predicted / measured - 1| of the group's rows."""
    return float(np.median(np.abs(np.expm1(log_errors(group, factors)))))


def operator_rows(rows: Rows) -> Iterator[OperatorRows]:
    """The rows that the cost model can predict, grouped as it tells them apart."""
    rows.check_columns(("op", "latency_us"))
    frame = _sound(rows)
    names = rows.column("system", "chip", "hardware").loc[frame.index]
    frame = frame.assign(_chip=[_CHIPS.get(name) or chip_named(name) for name in names])
    frame = rows.kept(frame, frame["_chip"] != "", "of a chip that the catalogue lacks")
    for op, count in frame.loc[~frame["op"].isin(KINDS), "op"].value_counts().items():
        rows.left_out[f"{op}: no operator of the cost model by itself"] += int(count)
    frame = frame[frame["op"].isin(KINDS)]
    for _, mine in frame.groupby(frame["op"].map(lambda op: KINDS[op].operator), sort=True):
        yield from _groups(rows, KINDS[str(mine["op"].iloc[0])], mine)


def _sound(rows: Rows) -> pd.DataFrame:
    """Rows that were measured and that nobody doubts, routed evenly."""
    frame = rows.frame
    if "provenance" in frame:
        measured = frame["provenance"].isin(_SOUND)
        frame = rows.kept(frame, measured, "computed, not measured (provenance)")
    if "suspect" in frame:
        frame = rows.kept(frame, frame["suspect"].isna(), "marked as suspect")
    if "distribution" in frame:
        even = frame["distribution"].fillna("").isin(_EVEN)
        frame = rows.kept(frame, even, "routed unevenly, where the cost model routes evenly")
    latency = pd.to_numeric(frame["latency_us"], errors="coerce")
    frame = frame.assign(latency_us=latency)
    return rows.kept(frame, latency > 0, "without a latency above 0")


def _groups(rows: Rows, kind: Kind, frame: pd.DataFrame) -> Iterator[OperatorRows]:
    rows.check_columns((*kind.columns, kind.form))
    numbers = frame[list(kind.columns)].apply(pd.to_numeric, errors="coerce")
    whole = (numbers > 0).all(axis=1) | _may_be_zero(numbers)
    frame = rows.kept(
        frame.assign(**{name: numbers[name] for name in numbers}), whole, "without a whole shape"
    )
    known = _DTYPES if kind.form == "dtype" else _KV
    forms = frame[kind.form].astype(str).map(lambda name: known.get(name, ""))
    frame = rows.kept(frame.assign(_form=forms), forms != "", f"of an unknown {kind.form}")
    engines = frame["backend"].astype(str) if "backend" in frame else pd.Series("", frame.index)
    frame = frame.assign(_engine=engines if kind.by_engine else ANY_ENGINE)
    if kind.by_engine:
        priced = frame["_engine"].isin(get_args(EngineName))
        frame = rows.kept(frame, priced, "of an engine that the cost model lacks")
    shape = list(kind.columns)
    frame = frame.assign(**{name: frame[name].astype(int) for name in shape})
    for (chip, engine, form), mine in frame.groupby(["_chip", "_engine", "_form"], sort=True):
        best = _blocks_first(mine).groupby(shape, sort=True)["latency_us"].min().reset_index()
        yield OperatorRows(kind, str(chip), str(engine), str(form), best)


def _may_be_zero(numbers: pd.DataFrame) -> pd.Series[bool]:
    """An empty cache is a shape too."""
    others = numbers.drop(columns="past_kv", errors="ignore")
    told = numbers.get("past_kv", pd.Series(np.nan, numbers.index)) >= 0
    return (others > 0).all(axis=1) & told


def _blocks_first(rows: pd.DataFrame) -> pd.DataFrame:
    """Of fp8, the rows scaled by blocks, as checkpoints are, where there are any."""
    if "dtype" not in rows:
        return rows
    blocks = rows["dtype"] == "fp8_block"
    return rows[blocks] if blocks.any() else rows


def fitted_factors(group: OperatorRows) -> Factors:
    """The group's factors; those of terms that do not bound it stay 1."""
    terms = group.kind.terms
    thinned = group.frame.iloc[:: max(1, len(group.frame) // _ROWS_OF_A_FIT)]
    few = replace(group, frame=thinned)

    def factors(values: Floats) -> Factors:
        return Factors(**{t: float(v) for t, v in zip(terms, values, strict=True)})

    found = shrunk_fit(
        lambda values: log_errors(few, factors(values)),
        np.ones(len(terms)),
        np.array([LOG_SD[term] for term in terms]),
        noise=NOISE,
    )
    return factors(found)


def log_errors(group: OperatorRows, factors: Factors) -> Floats:
    """Logarithm of predicted over measured [rows]."""
    engine = "vllm" if group.engine == ANY_ENGINE else group.engine
    machine = machine_of(catalog.chip(group.chip), cast(EngineName, engine), changes=_BENCHMARK)
    tuned = replace(machine, tuning=(((group.kind.operator, group.form, group.engine), factors),))
    seconds = group.kind.predict(tuned, group.form, group.frame)
    return np.asarray(np.log(seconds * 1e6 / group.frame["latency_us"].to_numpy()))


def _by_shape(
    rows: pd.DataFrame,
    keys: list[str],
    seconds: OfShape,
) -> Floats:
    """Seconds of all rows, those of equal keys at once."""
    told = pd.Series(0.0, index=rows.index)
    for key, mine in rows.groupby(keys, sort=False):
        sizes = {name: int(str(value)) for name, value in zip(keys, key, strict=True)}
        told.loc[mine.index] = seconds(sizes, mine)
    return np.asarray(told, dtype=np.float64)


def _products(machine: Machine, form: str, rows: pd.DataFrame) -> Floats:
    return _by_shape(
        rows,
        ["n", "k"],
        lambda size, mine: gemm_s(
            machine, _floats(mine, "m"), size["n"], size["k"], cast(Dtype, form)
        ),
    )


def _experts(machine: Machine, form: str, rows: pd.DataFrame) -> Floats:
    def seconds(size: Mapping[str, int], mine: pd.DataFrame) -> Floats:
        layer = MoeFfn(
            layers=1,
            routed_experts=size["num_experts"],
            top_k=size["topk"],
            expert_intermediate_size=size["inter"],
        )
        tp, ep = size["moe_tp"], size["moe_ep"]
        pool = Pool(role="aggregated", chip=machine.chip.name, tp=tp, dp=ep, ep=ep)
        tokens = _floats(mine, "num_tokens")
        return routed_experts_s(machine, layer, size["hidden"], pool, cast(Dtype, form), tokens)

    keys = ["hidden", "inter", "topk", "num_experts", "moe_tp", "moe_ep"]
    return _by_shape(rows, keys, seconds)


def _decode(group_of: Callable[[Mapping[str, int]], AttentionGroup], keys: list[str]) -> Predict:
    def predict(machine: Machine, form: str, rows: pd.DataFrame) -> Floats:
        def seconds(size: Mapping[str, int], mine: pd.DataFrame) -> Floats:
            law = context_seconds(machine, group_of(size), 1, cast(KvDtype, form))
            requests, context = _floats(mine, "batch"), _floats(mine, "past_kv") + 1.0
            return (
                law.decode_base
                + requests * law.decode_request
                + requests * context * law.decode_token
            )

        return _by_shape(rows, keys, seconds)

    return predict


# A prompt's kernel takes at least what a call in decode does: a step hides it behind the chunk's
# other work, a benchmark does not.
def _prefill(group_of: Callable[[Mapping[str, int]], AttentionGroup], keys: list[str]) -> Predict:
    def predict(machine: Machine, form: str, rows: pd.DataFrame) -> Floats:
        def seconds(size: Mapping[str, int], mine: pd.DataFrame) -> Floats:
            law = context_seconds(machine, group_of(size), 1, cast(KvDtype, form))
            prompts, length = _floats(mine, "batch"), _floats(mine, "q_len")
            bound = np.maximum(length * (length + 1) / 2 * law.pair, length * law.read)
            return law.decode_base + prompts * bound

        return _by_shape(rows, keys, seconds)

    return predict


def _grouped(size: Mapping[str, int]) -> AttentionGroup:
    heads, kv_heads = size["num_heads"], size["num_kv_heads"]
    return GqaAttention(layers=1, heads=heads, kv_heads=kv_heads, head_dim=size["head_dim"])


def _latent(size: Mapping[str, int]) -> AttentionGroup:
    return MlaAttention(layers=1, heads=size["num_heads"], q_lora_rank=0, **LATENT)


def _sums(machine: Machine, _: str, rows: pd.DataFrame) -> Floats:
    return _by_shape(
        rows,
        ["num_gpus"],
        lambda size, mine: all_reduce_s(machine, _floats(mine, "bytes"), size["num_gpus"]),
    )


def _gathers(kind: Literal["all_gather", "reduce_scatter"]) -> Predict:
    def predict(machine: Machine, _: str, rows: pd.DataFrame) -> Floats:
        return _by_shape(
            rows,
            ["num_gpus"],
            lambda size, mine: gather_within_s(
                machine, kind, _floats(mine, "bytes"), size["num_gpus"]
            ),
        )

    return predict


def _floats(rows: pd.DataFrame, name: str) -> Floats:
    return rows[name].to_numpy(dtype=np.float64)


_HEADS = ["num_heads", "num_kv_heads", "head_dim"]
_MOE = ("num_tokens", "hidden", "inter", "topk", "num_experts", "moe_tp", "moe_ep")
_MOVED = ("move", "fixed")
KINDS: dict[str, Kind] = {
    "gemm": Kind("product", ("m", "n", "k"), TERMS, _products),
    "moe": Kind("experts", _MOE, TERMS, _experts),
    "generation_attention": Kind(
        "decode_attention",
        ("batch", "past_kv", *_HEADS),
        _MOVED,
        _decode(_grouped, _HEADS),
        "kv_dtype",
        by_engine=True,
    ),
    "context_attention": Kind(
        "prefill_attention",
        ("batch", "q_len", *_HEADS),
        ("multiply",),
        _prefill(_grouped, _HEADS),
        "kv_dtype",
        by_engine=True,
    ),
    "generation_mla": Kind(
        "latent_decode",
        ("batch", "past_kv", "num_heads"),
        TERMS,
        _decode(_latent, ["num_heads"]),
        "kv_dtype",
        by_engine=True,
    ),
    "context_mla": Kind(
        "latent_prefill",
        ("batch", "q_len", "num_heads"),
        ("multiply",),
        _prefill(_latent, ["num_heads"]),
        "kv_dtype",
        by_engine=True,
    ),
    **{
        name: Kind("all_reduce", ("bytes", "num_gpus"), _MOVED, _sums)
        for name in ("custom_allreduce", "nccl_all_reduce")
    },
    "nccl_all_gather": Kind("all_gather", ("bytes", "num_gpus"), _MOVED, _gathers("all_gather")),
    "nccl_reduce_scatter": Kind(
        "reduce_scatter", ("bytes", "num_gpus"), _MOVED, _gathers("reduce_scatter")
    ),
}
