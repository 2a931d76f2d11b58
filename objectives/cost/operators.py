"""Seconds of one operator on one chip: the larger of its two bounds, plus a fixed latency."""

from __future__ import annotations

import numpy as np

from objectives.cost.experts import distinct_experts_of_slowest_rank, rows_of_slowest_rank
from objectives.cost.fitted import gemm_kernels, in_service_s
from objectives.cost.kernel_work import ACTIVATION_BYTES, gemm_work
from objectives.cost.machine import Machine
from objectives.cost.readings import note_product, read_experts_s
from objectives.cost.step_costs import Floats
from spaces.model import MoeFfn
from spaces.plan import Pool
from spaces.precision import BYTES_PER_WEIGHT, Dtype

# The narrowest product, in rows of its weights, that the fitted tables tell apart.
_NARROWEST = 32


def gemm_s(machine: Machine, tokens: Floats, rows: float, columns: float, dtype: Dtype) -> Floats:
    """Seconds of multiplying `tokens` vectors by a matrix of `rows` x `columns` weights.

    The larger of 2 t n k FLOPs and the bytes moved at the rates reached (Roofline, Williams et
    al., CACM 2009). From kernels fitted to measurements of the chip (`kernel_tables`), the best
    engine's for every shape; on a chip without them, and narrower than they reach, from its table
    of fractions.
    """
    kernels = gemm_kernels(machine, dtype)
    tabled = bool(kernels) and rows >= _NARROWEST
    note_product(machine, kernels if tabled else (), rows, columns, dtype)
    if not tabled:
        return _gemm_by_fractions_s(machine, tokens, rows, columns, dtype)
    work = gemm_work(machine.chip, np.maximum(tokens, 1.0), rows, columns, dtype)
    return in_service_s(machine, kernels, work, machine.factors("product", dtype))


def _gemm_by_fractions_s(
    machine: Machine, tokens: Floats, rows: float, columns: float, dtype: Dtype
) -> Floats:
    """FLOPs / (peak x fraction(t)) or bytes / (bandwidth x fraction(t)), plus a latency."""
    row, factors = machine.gemm(dtype), machine.factors("product", dtype)
    flops = 2.0 * tokens * rows * columns
    moved = rows * columns * BYTES_PER_WEIGHT[dtype] + tokens * (
        columns * input_bytes(machine, dtype) + rows * ACTIVATION_BYTES
    )
    multiply_s = flops / (machine.sustained_flops(dtype) * row.compute_fraction(tokens))
    move_s = moved / (machine.chip.hbm_bytes_per_s * row.memory_fraction(tokens))
    bound = np.maximum(factors.multiply * multiply_s, factors.move * move_s)
    return bound + machine.launch_s(factors.fixed * row.latency_us)


def routed_experts_s(
    machine: Machine, moe: MoeFfn, hidden_size: int, pool: Pool, dtype: Dtype, tokens: Floats
) -> Floats:
    """Seconds of one layer's routed experts on the slowest chip, for `tokens` of all ranks.

    Weights are read once for each distinct expert, by the rank with most of them; rows are
    multiplied by the rank with most rows, less efficiently with narrow slices of an expert. The
    two add up: grouped products have too few rows an expert to hide one behind the other
    (measured kernels rise by half between 2 and 32 rows an expert, where neither bound does).
    On a measured machine the engine's table is read instead (`readings`).
    """
    read = read_experts_s(machine, moe, hidden_size, pool, dtype, tokens)
    if read is not None:
        return read
    share = pool.tp * pool.dp / pool.ep
    distinct = distinct_experts_of_slowest_rank(moe, tokens, pool.ep)
    rows = rows_of_slowest_rank(moe, tokens, pool.ep)
    row, factors = machine.experts(dtype), machine.factors("experts", dtype)
    weights = moe.parameters_per_expert(hidden_size) / share
    width = moe.expert_width(hidden_size)
    inner = moe.expert_intermediate_size / share
    per_row = width * (input_bytes(machine, dtype) + ACTIVATION_BYTES) + 4 * inner
    moved = distinct * weights * BYTES_PER_WEIGHT[dtype] + rows * per_row
    narrowness = 1.0 + machine.overheads.grouped.half_width / inner
    multiply_s = 2.0 * weights * rows * narrowness / machine.sustained_flops(dtype) / row.compute
    move_s = moved / (machine.chip.hbm_bytes_per_s * row.memory)
    fixed_s = machine.launch_s(factors.fixed * row.latency_us) + machine.release_loss_s(dtype)
    return factors.multiply * multiply_s + factors.move * move_s + fixed_s


def small_kernels_s(
    machine: Machine, tokens: Floats, kernels: float, bytes_per_token: float
) -> Floats:
    """Seconds of element-wise kernels: their launches, and the activations they move."""
    return kernels * machine.small_kernel_s + tokens * bytes_per_token / machine.stream_bytes_per_s


def input_bytes(machine: Machine, weights: Dtype) -> float:
    """Bytes of an activation element in the format in which `weights` are multiplied."""
    return {"bf16": 2.0, "fp8": 1.0, "fp4": 0.5}[machine.chip.compute_dtype(weights)]
