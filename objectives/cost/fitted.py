"""From benchmark times of fitted kernels to what they take in a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from objectives.cost.kernel_tables import FittedKernel
from objectives.cost.kernel_work import Work
from objectives.cost.machine import SECONDS_PER_US, Machine
from objectives.cost.step_costs import Floats
from objectives.cost.tuning import UNTUNED, Factors
from spaces.precision import Dtype

# Formats of the benchmark in which weights of a format run, the first that a chip has. Formats
# without a benchmark of their own run as the next one stored and multiplied alike.
_GEMM = {
    "bf16": ("bfloat16",),
    "fp8": ("fp8_block", "fp8"),
    "nvfp4": ("nvfp4",),
    "mxfp4": ("nvfp4",),
    "int4": ("int4_wo", "bfloat16"),
}


def gemm_kernels(machine: Machine, dtype: Dtype) -> tuple[FittedKernel, ...]:
    """Fitted products of all engines for weights of a format; empty where none was measured.

    Where inputs come quantised they are those of one scale a tensor, less the time in which their
    benchmark quantises the inputs, of the engines of which that time was measured by itself.
    """
    spared = spared_us(machine, dtype)
    if spared:
        return tuple(
            replace(kernel, spared_s=spared[kernel.engine] * SECONDS_PER_US)
            for kernel in _first(machine, "gemm", ("fp8",))
            if kernel.engine in spared
        )
    unpacked = machine.chip.compute_dtype(dtype) == "bf16" and dtype not in ("bf16", "int4")
    return _first(machine, "gemm", ("bfloat16",) if unpacked else _GEMM[dtype])


def spared_us(machine: Machine, dtype: Dtype) -> Mapping[str, float]:
    """By engine, what its benchmark of a product spends on inputs that here come quantised."""
    ready = machine.quantised_inputs and dtype == "fp8"
    known = machine.achieved.gemm.input_quantisation_us.items()
    return {str(engine): us for engine, us in known if ready}


def in_service_s(
    machine: Machine, kernels: Sequence[FittedKernel], work: Work, factors: Factors = UNTUNED
) -> Floats:
    """Seconds of the fastest of `kernels`, as a step meets it.

    An engine picks the fastest kernel it knows for a shape. No kernel beats its bounds; clocks
    under load slow the part that multiplication bounds, and a gap to the next kernel follows.
    """
    bound = np.maximum(work.multiply_s, work.move_s)
    work = work.tuned(factors.multiply, factors.move)
    benchmark = np.min([kernel.seconds(work, factors.fixed) for kernel in kernels], axis=0)
    return under_load_s(machine, np.maximum(benchmark, bound), work)


def under_load_s(machine: Machine, seconds: Floats, work: Work) -> Floats:
    """Benchmark seconds of some work as a step meets them: slower clocks, and the gap after."""
    slowed = 1.0 / machine.overheads.sustained.compute - 1.0
    slower = seconds * (1.0 + slowed * np.asarray(work.multiply_share()))
    return np.asarray(slower + machine.kernel_gap_s)


def _first(machine: Machine, op: str, formats: Sequence[str]) -> tuple[FittedKernel, ...]:
    if machine.kernels is None:
        return ()
    for name in formats:
        if found := machine.kernels.find(op, name):
            return found
    return ()
