"""Constants of a step fitted to measured engine steps: small kernels, host, clocks, eager layers.

A row is one kind of batch under one layout: tokens and cached tokens of its prefill chunks, its
decoding requests and their context, and the seconds the engine's step took.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast, get_args

import numpy as np
import pandas as pd

from objectives.calibration.measured_files import Rows
from objectives.calibration.shrunk import Floats, shrunk_fit
from objectives.cost.build import costs_on
from objectives.cost.machine import Machine, machine_of
from objectives.cost.overheads import Overheads
from objectives.cost.step_costs import RankBatch, step_seconds
from objectives.cost.tuning import chip_path
from spaces import catalog
from spaces.calibration import Calibration, MeasuredFit, Offset, Stack
from spaces.errors import InputError
from spaces.plan import EngineName, Pool, Precision
from spaces.precision import KvDtype

COLUMNS = (
    *("model", "latency_ms", "prefill_tokens", "prefill_requests", "prefill_kv_tokens"),
    *("decode_requests", "decode_kv_tokens"),
)
NAMES = ("small_us", "gap_us", "eager_layer_us", "step_us", "compute", "kv_read")
PATHS = {
    "small_us": "kernels.small_us",
    "gap_us": "kernels.gap_us",
    "eager_layer_us": "engines.by_engine.{engine}.eager_layer_us",
    "step_us": "engines.by_engine.{engine}.step_us",
    "compute": "sustained.compute",
    "kv_read": "sustained.kv_read",
}
# Shares of a benchmark's rates cannot exceed it.
MOST = np.array([np.inf, np.inf, np.inf, np.inf, 1.0, 1.0])
LOG_SD = float(np.log(1.3))
# What one step says of the constants for all steps: rows of one server err together.
NOISE = 0.3
# The steps of a model at which half of what the constants leave counts as the model's own.
HALF_ROWS = 10.0
_ROWS_OF_A_FIT = 240
_KV: dict[str, KvDtype] = {"fp8": "fp8", "auto": "bf16", "bf16": "bf16", "bfloat16": "bf16"}


@dataclass(frozen=True, slots=True)
class StepRows:
    """Steps of one engine on one chip, with the columns of `COLUMNS`, `tp`, `pp`, `ep`, `kv`."""

    chip: str
    engine: EngineName
    frame: pd.DataFrame

    @property
    def names(self) -> list[str]:
        """Catalogue names of the rows' models."""
        known = {name: catalog.model(str(name)).name for name in self.frame["model"].unique()}
        return [known[name] for name in self.frame["model"]]


@dataclass(frozen=True, slots=True)
class StepFit:
    """What the steps of a chip and engine ask for: constants, and offsets of their models."""

    changes: dict[str, float]
    offsets: tuple[Offset, ...]
    told: MeasuredFit


def step_fits(rows: Rows, calibration: Calibration) -> Iterator[StepFit]:
    """For each chip and engine its fit; offsets come on top of those of `calibration`.

    A fit that does not bring the median error of its rows down changes nothing.
    """
    for steps in step_rows(rows):
        machine = machine_of(catalog.chip(steps.chip), steps.engine)
        centre = constants_of(machine)
        found = fit_constants(steps, machine, centre, noise=NOISE)
        left = log_errors(steps, machine, found) + _known(steps, calibration)
        offsets = tuple(_offsets(steps, left))
        factor = {name: offset.factor for offset in offsets for name in offset.models}
        after = left + np.log([factor[name] for name in steps.names])
        before = log_errors(steps, machine, centre) + _known(steps, calibration)
        kept = _median_error(after) < _median_error(before)
        yield StepFit(
            changes=_changes(steps, found) if kept else {},
            offsets=offsets if kept else (),
            told=MeasuredFit(
                chip=steps.chip,
                engine=steps.engine,
                what="steps",
                rows=len(steps.frame),
                error_before=_median_error(before),
                error_after=_median_error(after if kept else before),
            ),
        )


def _changes(steps: StepRows, constants: Floats) -> dict[str, float]:
    return {
        chip_path(steps.chip, PATHS[name].format(engine=steps.engine)): float(f"{value:.4g}")
        for name, value in zip(NAMES, constants, strict=True)
    }


def _median_error(logs: Floats) -> float:
    return round(float(np.median(np.abs(np.expm1(logs)))), 4)


def _known(steps: StepRows, calibration: Calibration) -> Floats:
    """Logarithm of the offsets that stand already [rows]."""
    vendor = catalog.chip(steps.chip).vendor
    factors = {
        name: calibration.step_factor(
            Stack(
                model=name,
                chip=steps.chip,
                vendor=vendor,
                engine=steps.engine,
                weights=catalog.model(name).native_weights.routed_experts,
            )
        )
        for name in set(steps.names)
    }
    return np.log([factors[name] for name in steps.names])


def _offsets(steps: StepRows, left: Floats) -> Iterator[Offset]:
    """What constants leave of each model's steps: their median, shrunk towards none.

    Reading weights and multiplying them are no constants of a step, so a chip that is slower
    throughout shows here.
    """
    names = np.array(steps.names)
    for name in sorted(set(steps.names)):
        own = -left[names == name]
        share = len(own) / (len(own) + HALF_ROWS)
        yield Offset(
            models=(name,),
            chip=steps.chip,
            engine=steps.engine,
            factor=float(f"{np.exp(share * np.median(own)):.4f}"),
            points=len(own),
        )


def step_rows(rows: Rows) -> Iterator[StepRows]:
    """The rows that the cost model can predict, by chip and engine; the others are counted."""
    frame = rows.frame
    rows.check_columns(COLUMNS)
    chips = rows.column("hardware", "chip", "system")
    frame = frame.assign(
        _chip=[chip_named(str(name)) for name in chips],
        _engine=_engines(frame),
        kv=_formats(frame),
        **{size: _sizes(frame, size) for size in ("tp", "pp", "ep", "dp")},
    )
    frame = rows.kept(frame, frame["_chip"] != "", "of a chip that the catalogue lacks")
    frame = rows.kept(frame, frame["_engine"] != "", "of an engine that the cost model lacks")
    frame = rows.kept(frame, frame["dp"] == 1, "of several attention ranks, whose batches differ")
    known = {name: _is_model(str(name)) for name in frame["model"].unique()}
    frame = rows.kept(frame, frame["model"].map(known), "of a model that the catalogue lacks")
    frame = rows.kept(frame, frame["kv"] != "", "of an unknown KV format")
    asked = frame["decode_requests"] + frame["prefill_requests"] > 0
    frame = rows.kept(frame, (frame["latency_ms"] > 0) & asked, "without a batch or a latency")
    for (chip, engine), mine in frame.groupby(["_chip", "_engine"], sort=True):
        yield StepRows(str(chip), cast(EngineName, str(engine)), mine.reset_index(drop=True))


def fit_constants(steps: StepRows, machine: Machine, centre: Floats, *, noise: float) -> Floats:
    """Constants, in the order of `NAMES`, that fit the steps and stay near `centre`."""
    thinned = steps.frame.iloc[:: max(1, len(steps.frame) // _ROWS_OF_A_FIT)]
    few = replace(steps, frame=thinned)
    return shrunk_fit(
        lambda constants: log_errors(few, machine, constants),
        centre,
        np.full(len(NAMES), LOG_SD),
        noise=noise,
        most=MOST,
    )


def constants_of(machine: Machine) -> Floats:
    """The constants of a machine, in the order of `NAMES`."""
    told, engine = machine.overheads, machine.engine_overhead
    return np.array(
        [
            *(told.kernels.small_us, told.kernels.gap_us),
            *(engine.eager_layer_us, engine.step_us),
            *(told.sustained.compute, told.sustained.kv_read),
        ]
    )


def log_errors(steps: StepRows, machine: Machine, constants: Floats) -> Floats:
    """Logarithm of predicted over measured, in the order of the rows."""
    varied = replace(machine, overheads=_varied(machine.overheads, machine.engine, constants))
    logs = pd.Series(0.0, index=steps.frame.index)
    for (model, tp, pp, ep, kv), mine in steps.frame.groupby(["model", "tp", "pp", "ep", "kv"]):
        pool = Pool(
            role="aggregated", chip=steps.chip, tp=tp, pp=pp, ep=ep, max_num_seqs=_seats(mine)
        )
        found = costs_on(varied, catalog.model(str(model)), pool, Precision(kv=kv))
        predicted = [1e3 * sum(step_seconds(found, [_batch(r)])) for r in mine.to_dict("records")]
        logs.loc[mine.index] = np.log(np.array(predicted) / mine["latency_ms"].to_numpy())
    return np.asarray(logs, dtype=np.float64)


def _varied(told: Overheads, name: EngineName, constants: Floats) -> Overheads:
    small, gap, eager, step, compute, kv_read = (float(value) for value in constants)
    engine = told.engines.by_engine[name]
    engine = engine.model_copy(update={"eager_layer_us": eager, "step_us": step})
    engines = {**told.engines.by_engine, name: engine}
    return told.model_copy(
        update={
            "kernels": told.kernels.model_copy(update={"small_us": small, "gap_us": gap}),
            "sustained": told.sustained.model_copy(
                update={"compute": compute, "kv_read": kv_read}
            ),
            "engines": told.engines.model_copy(update={"by_engine": engines}),
        }
    )


def _batch(row: Mapping[Hashable, Any]) -> RankBatch:
    decodes, chunks = int(row["decode_requests"]), int(row["prefill_requests"])
    contexts = (round(row["decode_kv_tokens"] / decodes),) * decodes if decodes else ()
    new, cached = int(row["prefill_tokens"]), int(row["prefill_kv_tokens"])
    return RankBatch(contexts, ((new // chunks, cached // chunks),) * chunks if chunks else ())


def _seats(rows: pd.DataFrame) -> int:
    stated = rows["max_num_seqs"].max() if "max_num_seqs" in rows else 0
    return int(max(128, stated, rows["decode_requests"].max()))


def chip_named(text: str) -> str:
    """The catalogue's name of a chip written like `B300 (inferred)`, or nothing."""
    try:
        return catalog.chip(text.partition("(")[0].strip().lower()).name
    except InputError:
        return ""


def _is_model(name: str) -> bool:
    try:
        catalog.model(name)
    except InputError:
        return False
    return True


def _engines(frame: pd.DataFrame) -> list[str]:
    """The `engine` column, or vLLM where a `vllm_version` is told."""
    if "engine" in frame:
        known = get_args(EngineName)
        return [name if name in known else "" for name in frame["engine"].astype(str)]
    return ["vllm" if "vllm_version" in frame else ""] * len(frame)


def _formats(frame: pd.DataFrame) -> list[str]:
    """The `kv_dtype` column; a cache that is not told is in bf16."""
    if "kv_dtype" not in frame:
        return ["bf16"] * len(frame)
    return [_KV.get(str(name), "") for name in frame["kv_dtype"].fillna("auto")]


def _sizes(frame: pd.DataFrame, name: str) -> pd.Series[int]:
    if name not in frame:
        return pd.Series(1, index=frame.index)
    return frame[name].fillna(1).astype(int)
