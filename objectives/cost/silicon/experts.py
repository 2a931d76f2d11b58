"""Routed experts read from measured tables, or kriged between measured layouts.

A layout is an expert's width and inner slice, how many experts a rank holds, how many ranks there
are, how many experts a token picks and how unevenly. A kernel's seconds over their bounds change
smoothly from layout to layout, so that a layout that was not measured is predicted from those
around it, token count by token count.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pandas as pd

from objectives.cost.benchmark_work import experts_work
from objectives.cost.curves import MeasuredCurve, along_sizes
from objectives.cost.kernel_work import Number, Work
from objectives.cost.kriging import Kriged, kriged
from objectives.cost.silicon.tables import FORMATS, newest_table
from objectives.cost.step_costs import Floats
from spaces.chip import ChipSpec
from spaces.model.feed_forward import matrices
from spaces.precision import Dtype

# Coordinates of a layout in `experts_work`'s shape, all base-2 logarithms but the skew.
COORDINATES = ("i", "h", "e", "p", "k", "s")
# Distance over which layouts stay alike, in doublings, and noise, chosen on one fold of B200 that
# no score contains (`scripts/score_expert_layouts.py`).
LENGTH, NOISE = 4.0, 0.01
SKEW = {"balanced": 0.0, "power_law_1.01": 1.0, "power_law_1.2": 2.0}
LAYOUT = ("hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size")
# Formats of the tables in which weights of a format run, the first that was measured.
_RUN_IN: dict[Dtype, tuple[str, ...]] = {
    "bf16": ("bfloat16",),
    "fp8": ("fp8_block", "fp8"),
    "nvfp4": ("nvfp4",),
    "mxfp4": ("w4a8_mxfp4_mxfp8", "w4a16_mxfp4"),
    "int4": ("int4_wo",),
}
# Fewer layouts than this are not kriged.
_LEAST_LAYOUTS = 30
_UNGATED = "nongated"


@dataclass(frozen=True, slots=True)
class ExpertLayout:
    """One rank's share of a layer's routed experts."""

    width: int
    inner: int
    top_k: int
    experts: int
    tp: int
    ep: int
    gated: bool

    @property
    def key(self) -> tuple[int, ...]:
        """In the order of `LAYOUT`."""
        return (self.width, self.inner, self.top_k, self.experts, self.tp, self.ep)


@dataclass(frozen=True, slots=True)
class KrigedExperts:
    """One kernel between its measured layouts."""

    chip: ChipSpec
    dtype: Dtype
    tokens: Floats
    floor_s: float
    process: Kriged

    def seconds(self, layout: ExpertLayout) -> Floats | None:
        """Seconds at the measured token counts; None beyond the measured layouts."""
        work = layout_work(self.chip, self.dtype, layout, self.tokens)
        point = coordinates(work.shape, len(self.tokens))[0]
        return self.row_seconds(work, self.tokens) if self.process.surrounds(point) else None

    def row_seconds(self, work: Work, tokens: Floats) -> Floats:
        """Seconds of some work [rows] at measured token counts, however far its layouts are."""
        column = np.searchsorted(self.tokens, tokens)
        logs = self.process.at(coordinates(work.shape, len(tokens)))
        base = np.asarray(work.roofline_s()) + self.floor_s
        return np.asarray(base * np.exp(logs[np.arange(len(tokens)), column]))


@lru_cache(maxsize=4096)
def experts_curve(
    chip: ChipSpec, engine: str, dtype: Dtype, layout: ExpertLayout
) -> MeasuredCurve | None:
    """The engine's fastest kernel for weights of a format; None where there is none to tell."""
    table = newest_table(chip.name, engine, "moe_perf")
    if table is None:
        return None
    for name in _RUN_IN[dtype]:
        rows = _of_kind(table.rows, layout.gated)
        rows = rows[(rows["moe_dtype"] == name) & (rows["distribution"] == "balanced")]
        mine = rows[np.logical_and.reduce([rows[c] == v for c, v in _wanted(layout)])]
        if not mine.empty:
            best = mine.groupby("num_tokens")["latency"].min() * 1e-3
            origin = f"{table.name} {name}, {len(best)} token counts"
            return _curve(best.index.to_numpy(dtype=np.float64), best.to_numpy(), origin)
    for name in _RUN_IN[dtype]:
        found = [
            (kernel.tokens, seconds)
            for kernel in kriged_kernels(chip, engine, name, layout.gated)
            if (seconds := kernel.seconds(layout)) is not None
        ]
        if found:
            tokens = np.unique(np.concatenate([one for one, _ in found]))
            seconds = np.min([along_sizes(*one, tokens) for one in found], axis=0)
            return _curve(tokens, seconds, f"{table.name} {name}, between measured layouts")
    return None


def _wanted(layout: ExpertLayout) -> list[tuple[str, int]]:
    return list(zip(LAYOUT, layout.key, strict=True))


def _curve(tokens: Floats, seconds: Floats, origin: str) -> MeasuredCurve:
    rising = np.maximum.accumulate(np.asarray(seconds, dtype=np.float64))
    return MeasuredCurve(tokens, rising, origin)


def _of_kind(rows: pd.DataFrame, gated: bool) -> pd.DataFrame:
    return rows[rows["kernel_source"].str.contains(_UNGATED) != gated]


@lru_cache(maxsize=64)
def kriged_kernels(
    chip: ChipSpec, engine: str, name: str, gated: bool
) -> tuple[KrigedExperts, ...]:
    """All kernels of an engine in a format that were measured in enough layouts."""
    table = newest_table(chip.name, engine, "moe_perf")
    if table is None or not chip.peak_flops(chip.compute_dtype(FORMATS[name])):
        return ()
    rows = _of_kind(table.rows, gated)
    kernels = rows[rows["moe_dtype"] == name].groupby("kernel_source", sort=True)
    dtype = FORMATS[name]
    return tuple(_fitted_kernels(chip, dtype, (own for _, own in kernels), gated=gated))


def _fitted_kernels(
    chip: ChipSpec, dtype: Dtype, kernels: Iterable[pd.DataFrame], *, gated: bool
) -> Iterator[KrigedExperts]:
    for rows in kernels:
        frame = layout_rows(rows)
        if len(frame[[*LAYOUT, "distribution"]].drop_duplicates()) >= _LEAST_LAYOUTS:
            work = rows_work(chip, dtype, frame, gated=gated)
            tokens, ms = frame["num_tokens"].to_numpy(), frame["latency"].to_numpy()
            yield kriged_experts(chip, dtype, work, tokens, ms * 1e-3)


def layout_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of one kernel, each layout, routing and token count once: the median `latency` (ms)."""
    by_row = rows.groupby([*LAYOUT, "distribution", "num_tokens"])["latency"].median()
    return by_row[by_row > 0].reset_index()


def kriged_experts(
    chip: ChipSpec, dtype: Dtype, work: Work, tokens: Floats, seconds: Floats
) -> KrigedExperts:
    """A kernel's rows as a process over their layouts, with a column for each token count."""
    floor_s = 0.9 * float(seconds.min())
    logs = np.log(seconds / (np.asarray(work.roofline_s()) + floor_s))
    points, layout = np.unique(coordinates(work.shape, len(seconds)), axis=0, return_inverse=True)
    counts, column = np.unique(np.asarray(tokens, dtype=np.float64), return_inverse=True)
    values = np.full((len(points), len(counts)), np.nan)
    values[layout.ravel(), column] = logs
    process = kriged(points, values, length=LENGTH, noise=NOISE)
    return KrigedExperts(chip, dtype, counts, floor_s, process)


def coordinates(shape: Mapping[str, Number], rows: int) -> Floats:
    """Places of rows' layouts [rows, coordinates]."""
    return np.column_stack([np.broadcast_to(np.asarray(shape[c]), rows) for c in COORDINATES])


def layout_work(chip: ChipSpec, dtype: Dtype, layout: ExpertLayout, tokens: Floats) -> Work:
    """What one rank of a layout has to do for `tokens` of all ranks, spread evenly."""
    return experts_work(
        *(chip, dtype, tokens),
        experts=float(layout.experts),
        top_k=float(layout.top_k),
        ep=float(layout.ep),
        width=float(layout.width),
        inner=layout.inner / layout.tp,
        skew=0.0,
        matrices=float(matrices(layout.gated)),
    )


def rows_work(chip: ChipSpec, dtype: Dtype, rows: pd.DataFrame, *, gated: bool = True) -> Work:
    """What measured rows had to do, by the columns of the tables."""
    tokens, width, inner, top_k, experts, tp, ep = (
        rows[name].to_numpy(dtype=np.float64)
        for name in ("num_tokens", "hidden_size", "inter_size", *LAYOUT[2:])
    )
    return experts_work(
        *(chip, dtype, tokens),
        experts=experts,
        top_k=top_k,
        ep=ep,
        width=width,
        inner=inner / tp,
        skew=np.array([SKEW[name] for name in rows["distribution"]]),
        matrices=float(matrices(gated)),
    )
