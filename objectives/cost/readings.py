"""Operators of a step as measured tables have them; None, and a note in the log, without one.

The tables are benchmarks of single kernels (`silicon`). What a step adds is the same as for fitted
kernels: slower clocks under load, a gap after each kernel, the slowest rank's share of experts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

from objectives.cost.curves import MeasuredCurve
from objectives.cost.experts import imbalance
from objectives.cost.fitted import under_load_s
from objectives.cost.kernel_tables import FittedKernel
from objectives.cost.machine import Machine
from objectives.cost.silicon.exchanges import (
    all_reduce_curve,
    all_to_all_curve,
    gather_curve,
)
from objectives.cost.silicon.experts import ExpertLayout, experts_curve, layout_work
from objectives.cost.step_costs import Floats
from spaces.model import MoeFfn
from spaces.plan import Pool
from spaces.precision import Dtype


def note_product(
    machine: Machine,
    kernels: Sequence[FittedKernel],
    rows: float,
    columns: float,
    dtype: Dtype,
) -> None:
    """Log whether a product lies among the measured ones; `kernels` are those it is priced by."""
    if not machine.measured:
        return
    shape = {"n": math.log2(rows), "k": math.log2(columns)}
    read = [one.read_from for one in kernels if one.read_from and one.spans(shape)]
    origin = " or ".join(dict.fromkeys(read)) or None
    machine.note(
        "product", f"{rows:g} x {columns:g} {dtype}", origin, "no measured product of such a size"
    )


def read_experts_s(
    machine: Machine, moe: MoeFfn, hidden_size: int, pool: Pool, dtype: Dtype, tokens: Floats
) -> Floats | None:
    """Seconds of one layer's routed experts on the slowest chip, for `tokens` of all ranks.

    The table spreads tokens evenly over ranks, so it is read at the tokens that would give every
    rank as many rows as the slowest one has.
    """
    if not machine.measured:
        return None
    share, remainder = divmod(pool.tp * pool.dp, pool.ep)
    layout = ExpertLayout(
        width=moe.expert_width(hidden_size),
        inner=moe.expert_intermediate_size,
        top_k=moe.top_k,
        experts=moe.routed_experts,
        tp=share,
        ep=pool.ep,
        gated=moe.gated,
    )
    curve = None if remainder else experts_curve(machine.chip, machine.engine, dtype, layout)
    size = f"{layout.experts} of {layout.width} x {layout.inner} {dtype}"
    shape = f"{size}, tp {share}, ep {pool.ep}"
    origin = None if curve is None else curve.origin
    machine.note("experts", shape, origin, "neither measured nor between measured layouts")
    if curve is None:
        return None
    busiest = tokens * imbalance(moe, tokens, pool.ep)
    work = layout_work(machine.chip, dtype, layout, busiest)
    return under_load_s(machine, curve.at(busiest), work) + machine.release_loss_s(dtype)


def read_all_reduce_s(machine: Machine, message_bytes: Floats, ranks: int) -> Floats | None:
    """Seconds of a sum over `ranks` chips of one scale-up domain."""
    if not machine.measured:
        return None
    curve = all_reduce_curve(machine.chip.name, machine.engine, ranks)
    return _read(machine, "all-reduce", f"{ranks} ranks", curve, message_bytes)


def read_gather_s(
    machine: Machine,
    kind: Literal["all_gather", "reduce_scatter"],
    gathered_bytes: Floats,
    ranks: int,
) -> Floats | None:
    """Seconds of an all-gather or reduce-scatter in one scale-up domain."""
    if not machine.measured:
        return None
    curve = gather_curve(machine.chip.name, kind, ranks)
    return _read(machine, kind.replace("_", "-"), f"{ranks} ranks", curve, gathered_bytes)


def read_all_to_all_s(
    machine: Machine, moe: MoeFfn, hidden_size: int, dtype: Dtype, tokens: Floats, ep: int
) -> Floats | None:
    """Seconds of bringing `tokens` of each rank to their experts and back."""
    if not machine.measured:
        return None
    width = moe.expert_width(hidden_size)
    curve = all_to_all_curve(
        chip=machine.chip.name,
        engine=machine.engine,
        ep=ep,
        width=width,
        top_k=moe.top_k,
        dtype=dtype,
    )
    shape = f"{ep} ranks, {moe.top_k} x {width} {dtype}"
    return _read(machine, "all-to-all", shape, curve, tokens)


def _read(
    machine: Machine, operator: str, shape: str, curve: MeasuredCurve | None, sizes: Floats
) -> Floats | None:
    origin = None if curve is None else curve.origin
    machine.note(operator, shape, origin, "not measured at this size")
    return None if curve is None else np.asarray(curve.at(sizes))
