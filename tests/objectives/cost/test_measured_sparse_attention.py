"""Whole attention layers of sparse and compressed models against measured ones.

Seconds of single layers, projections included, from the module tables of aiconfigurator-core
0.12.0 (fp8 weights in blocks; bf16 for MiniMax-M3), at round sizes picked before looking. Padded
heads and figures of the index were taken from the same tables, the rest was not: layers of V4 and
M3 were predicted unseen.
"""

from __future__ import annotations

from statistics import median

import numpy as np
import pytest

from objectives.cost.context import context_seconds
from objectives.cost.layers import attention_layer_s, stream_mixer_s
from objectives.cost.machine import machine_of
from objectives.cost.step_costs import windowed_pairs
from spaces import catalog
from spaces.plan import EngineName
from spaces.precision import Dtype, KvDtype

# Model, attention group, chip, engine, tp, KV format, requests, new tokens, cached tokens, us.
Measured = tuple[str, int, str, EngineName, int, KvDtype, int, int, int, int]
DECODE: list[Measured] = [
    ("deepseek-v3.2", 0, "b200", "sglang", 1, "bf16", 1, 1, 4096, 119),
    ("deepseek-v3.2", 0, "b200", "sglang", 1, "bf16", 32, 1, 2048, 155),
    ("deepseek-v3.2", 0, "b200", "sglang", 8, "bf16", 32, 1, 4096, 123),
    ("deepseek-v3.2", 0, "b200", "sglang", 8, "bf16", 64, 1, 1024, 117),
    ("deepseek-v3.2", 0, "b200", "sglang", 1, "bf16", 128, 1, 512, 174),
    ("deepseek-v3.2", 0, "b200", "sglang", 4, "bf16", 8, 1, 16384, 114),
    ("deepseek-v3.2", 0, "b200", "trtllm", 1, "bf16", 64, 1, 4096, 212),
    ("deepseek-v3.2", 0, "b200", "trtllm", 8, "bf16", 64, 1, 32768, 251),
    ("deepseek-v3.2", 0, "b200", "trtllm", 1, "bf16", 256, 1, 8192, 440),
    ("deepseek-v3.2", 0, "h200", "sglang", 1, "bf16", 8, 1, 4096, 157),
    ("deepseek-v3.2", 0, "h200", "sglang", 8, "bf16", 32, 1, 4096, 120),
    ("deepseek-v3.2", 0, "h200", "sglang", 1, "bf16", 64, 1, 2048, 206),
    ("deepseek-v4-pro", 0, "b200", "vllm", 1, "fp8", 8, 1, 1024, 132),
    ("deepseek-v4-pro", 0, "b200", "vllm", 1, "fp8", 64, 1, 16384, 180),
    ("deepseek-v4-pro", 0, "b200", "vllm", 8, "fp8", 8, 1, 65536, 114),
    ("deepseek-v4-pro", 0, "b200", "sglang", 8, "fp8", 8, 1, 1024, 90),
    ("deepseek-v4-pro", 0, "b200", "sglang", 8, "fp8", 64, 1, 16384, 194),
    ("deepseek-v4-pro", 1, "b200", "vllm", 1, "fp8", 64, 1, 16384, 126),
    ("deepseek-v4-pro", 1, "b200", "vllm", 8, "fp8", 8, 1, 65536, 74),
    ("deepseek-v4-pro", 1, "b200", "sglang", 1, "fp8", 8, 1, 1024, 113),
    ("deepseek-v4-pro", 1, "b200", "sglang", 8, "fp8", 64, 1, 16384, 78),
    ("minimax-m3", 1, "b200", "sglang", 1, "bf16", 8, 1, 16384, 96),
    ("minimax-m3", 1, "b200", "sglang", 8, "bf16", 64, 1, 4096, 78),
    ("minimax-m3", 1, "b200", "sglang", 4, "bf16", 16, 1, 65536, 128),
]
PREFILL: list[Measured] = [
    ("deepseek-v3.2", 0, "b200", "sglang", 1, "bf16", 2, 8192, 0, 13446),
    ("deepseek-v3.2", 0, "b200", "sglang", 8, "bf16", 2, 8192, 0, 10323),
    ("deepseek-v3.2", 0, "h200", "vllm", 1, "bf16", 2, 8192, 0, 26605),
    ("deepseek-v3.2", 0, "h200", "vllm", 8, "bf16", 2, 8192, 0, 13184),
    ("deepseek-v3.2", 0, "h200", "vllm", 1, "bf16", 8, 4096, 0, 48156),
    ("deepseek-v3.2", 0, "h200", "vllm", 8, "bf16", 8, 4096, 0, 22909),
    ("deepseek-v4-pro", 0, "b200", "vllm", 1, "fp8", 1, 8192, 0, 6888),
    ("deepseek-v4-pro", 0, "b200", "vllm", 8, "fp8", 4, 4096, 0, 3624),
    ("deepseek-v4-pro", 0, "b200", "vllm", 1, "fp8", 4, 16384, 0, 48828),
    ("deepseek-v4-pro", 0, "b200", "vllm", 8, "fp8", 1, 16384, 0, 6683),
    ("deepseek-v4-pro", 1, "b200", "vllm", 1, "fp8", 1, 8192, 0, 3540),
    ("deepseek-v4-pro", 1, "b200", "vllm", 8, "fp8", 4, 4096, 0, 2406),
    ("deepseek-v4-pro", 1, "b200", "vllm", 1, "fp8", 4, 16384, 0, 27388),
    ("deepseek-v4-pro", 1, "b200", "vllm", 8, "fp8", 1, 16384, 0, 2504),
    ("minimax-m3", 1, "b200", "vllm", 1, "bf16", 1, 8192, 0, 2264),
    ("minimax-m3", 1, "b200", "vllm", 4, "bf16", 4, 8192, 0, 2203),
    ("minimax-m3", 1, "b200", "vllm", 1, "bf16", 1, 16384, 0, 4568),
]


def ratio(row: Measured) -> float:
    """Predicted over measured time of one layer of a rank."""
    name, place, chip, engine, tp, kv, batch, new, cached, us = row
    model = catalog.model(name)
    group, machine = model.attention[place], machine_of(catalog.chip(chip), engine)
    dtype: Dtype = "bf16" if name == "minimax-m3" else "fp8"
    tokens = np.array([float(batch * new)])
    seconds = float(attention_layer_s(machine, group, model.hidden_size, tp, dtype, tokens)[0])
    context, limit = context_seconds(machine, group, tp, kv), model.read_limit_tokens
    if new == 1:
        length = cached + 1
        one = context.decode_request + length * context.decode_token
        one += min(length, limit) * context.decode_window_token
        seconds += context.decode_base + batch * one
    else:
        pairs = new * cached + new * (new + 1) / 2
        multiply = pairs * context.pair
        multiply += windowed_pairs(new, cached, limit) * context.window_pair
        one = new * context.chunk_token + max(multiply, (new + cached) * context.read)
        seconds += batch * one
    return seconds / (us * 1e-6)


@pytest.mark.parametrize(
    ("rows", "typical", "worst"),
    [(DECODE, 0.12, 0.4), (PREFILL, 0.2, 0.42)],
    ids=["decode", "prefill"],
)
def test_layers_of_sparse_attention(rows: list[Measured], typical: float, worst: float) -> None:
    """With `pytest -s` it prints predicted / measured by model, kind of layer and engine."""
    told: dict[tuple[str, int, str], list[float]] = {}
    for row in rows:
        told.setdefault((row[0], row[1], row[3]), []).append(ratio(row))
    for (name, place, engine), found in told.items():
        low, high = min(found), max(found)
        print(f"\n{name} {place} {engine}: {median(found):.2f} ({low:.2f}-{high:.2f})", end="")
    errors = [abs(ratio(row) - 1) for row in rows]
    assert median(errors) < typical
    assert max(errors) < worst


def test_mixing_of_residual_streams() -> None:
    """Before and after both parts of a layer of V4-Pro on B200 under vLLM, same tables."""

    machine = machine_of(catalog.chip("b200"), "vllm")
    measured_us = {1: 31.9, 192: 39.7, 1024: 113.1, 8192: 707.7, 65536: 5330.5}
    for tokens, us in measured_us.items():
        found = 2 * stream_mixer_s(machine, 7168, 4, np.array([float(tokens)]))[0]
        assert found == pytest.approx(us * 1e-6, rel=0.17)
