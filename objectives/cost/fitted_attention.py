"""Fitted attention kernels as the affine coefficients that a step's arrays hold."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.optimize import nnls

from objectives.cost.kernel_tables import FittedKernel
from objectives.cost.kernel_work import decode_attention_work, prefill_attention_work
from objectives.cost.machine import Machine
from objectives.cost.step_costs import Floats
from spaces.model import GqaAttention
from spaces.precision import BYTES_PER_KV_ELEMENT, KvDtype
from spaces.sharding import kv_heads_per_chip

_KV_NAMES: dict[KvDtype, str] = {"bf16": "bfloat16", "fp8": "fp8"}
# Where the affine law has to hold: requests of a step, and tokens of their contexts.
_REQUESTS = np.array([1.0, 4.0, 16.0, 64.0, 256.0])
_CONTEXTS = np.array([512.0, 2048.0, 8192.0, 32768.0])
_PROMPTS = np.array([2048.0, 4096.0, 8192.0])


def decode_law(
    machine: Machine, group: GqaAttention, tp: int, kv: KvDtype
) -> tuple[float, float] | None:
    """Seconds of a call and of a context token, without gap and derate.

    None where nothing was measured, or where the chip has fractions of its own.

    The line nearest in relative terms to the fitted kernel over a grid of requests and contexts.
    """
    if machine.achieved.decode_attention.status != "estimate":
        return None
    kernels = _kernels(machine, "decode_attention", kv)
    if not kernels:
        return None
    requests, contexts = (axis.ravel() for axis in np.meshgrid(_REQUESTS, _CONTEXTS))
    work = decode_attention_work(
        machine.chip,
        requests,
        contexts,
        heads=group.heads / tp,
        kv_heads=float(kv_heads_per_chip(group, tp)),
        head_dim=float(group.head_dim),
        kv_bytes=BYTES_PER_KV_ELEMENT[kv],
    )
    seconds = _fastest(kernels, [kernel.seconds(work) for kernel in kernels])
    tokens = requests * contexts
    scaled, _ = nnls(np.column_stack([1e-6 / seconds, 1e-9 * tokens / seconds]), np.ones(20))
    return float(scaled[0]) * 1e-6, float(scaled[1]) * 1e-9


def prefill_pair_s(machine: Machine, group: GqaAttention, tp: int, kv: KvDtype) -> float | None:
    """Seconds of one pair of tokens in causal prefill, clocks under load; None as above."""
    if machine.achieved.prefill_attention.status != "estimate":
        return None
    kernels = _kernels(machine, "prefill_attention", kv)
    if not kernels:
        return None
    work = prefill_attention_work(
        machine.chip,
        1.0,
        _PROMPTS,
        heads=group.heads / tp,
        kv_heads=float(kv_heads_per_chip(group, tp)),
        head_dim=float(group.head_dim),
    )
    seconds = _fastest(kernels, [kernel.seconds(work) for kernel in kernels])
    pairs = _PROMPTS * (_PROMPTS + 1) / 2
    return float(np.mean(seconds / pairs)) / machine.overheads.sustained.compute


def _kernels(machine: Machine, op: str, kv: KvDtype) -> tuple[FittedKernel, ...]:
    """The engine's kernels on a KV format, else all engines'; fp8 may compute in either."""
    if machine.kernels is None:
        return ()
    name = _KV_NAMES[kv]
    formats = ("fp8", "bfloat16") if kv == "fp8" else ("bfloat16",)
    found = [k for dtype in formats for k in machine.kernels.find(op, dtype, name)]
    own = tuple(kernel for kernel in found if kernel.engine == machine.engine)
    return own or tuple(found)


def _fastest(kernels: Sequence[FittedKernel], seconds: Sequence[Floats]) -> Floats:
    """The fastest kernel of each engine, the median over engines where several are given."""
    engines = sorted({kernel.engine for kernel in kernels})
    best = [
        np.min([s for k, s in zip(kernels, seconds, strict=True) if k.engine == engine], axis=0)
        for engine in engines
    ]
    return np.asarray(np.median(best, axis=0))
