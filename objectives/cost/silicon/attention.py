"""Attention's look at the context, read from measured tables.

A step adds up attention by coefficients (`ContextSeconds`): so much a call, so much a request or
new token, so much a token of context or a query-key pair. The rows of one geometry in one format
are reduced to them by least squares on relative errors, none of them negative (Lawson and Hanson
1974). How far the rows lie off the coefficients is told with them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pandas as pd
from scipy.optimize import nnls

from objectives.cost.silicon.tables import KV_FORMATS, newest_table
from objectives.cost.step_costs import Floats
from spaces.precision import KvDtype

# Fewer rows than this do not tell coefficients apart.
_LEAST_ROWS = 12
# The one latent geometry that was measured: DeepSeek's (arXiv 2405.04434).
LATENT = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128}


@dataclass(frozen=True, slots=True)
class AttentionLaw:
    """Seconds of one layer on one chip, as benchmarked: a call + items + units.

    Items are requests (decode) or new tokens (prefill), units context tokens or query-key pairs,
    at most a window's.
    """

    call_s: float
    item_s: float
    unit_s: float
    origin: str


@lru_cache(maxsize=1024)
def decode_law(
    *, chip: str, engine: str, heads: int, kv_heads: int, head_dim: int, window: int, kv: KvDtype
) -> AttentionLaw | None:
    """Grouped-query attention of one token a request; None where the geometry was not measured."""
    found = _grouped_rows(
        "generation_attention_perf", chip, engine, (heads, kv_heads, head_dim, window), kv
    )
    return None if found is None else _decode(*found, window)


@lru_cache(maxsize=1024)
def latent_decode_law(*, chip: str, engine: str, heads: int, kv: KvDtype) -> AttentionLaw | None:
    """The same of latent attention, absorbed."""
    found = _latent_rows("generation_mla_perf", chip, engine, heads, kv)
    return None if found is None else _decode(*found, 0)


@lru_cache(maxsize=1024)
def prefill_law(
    *, chip: str, engine: str, heads: int, kv_heads: int, head_dim: int, window: int, kv: KvDtype
) -> AttentionLaw | None:
    """Causal grouped-query attention of whole prompts; None where it was not measured."""
    found = _grouped_rows(
        "context_attention_perf", chip, engine, (heads, kv_heads, head_dim, window), kv
    )
    return None if found is None else _prefill(*found, window)


@lru_cache(maxsize=1024)
def latent_prefill_law(*, chip: str, engine: str, heads: int, kv: KvDtype) -> AttentionLaw | None:
    """The same of latent attention, keys and values expanded."""
    found = _latent_rows("context_mla_perf", chip, engine, heads, kv)
    return None if found is None else _prefill(*found, 0)


def _grouped_rows(
    file: str, chip: str, engine: str, geometry: tuple[int, int, int, int], kv: KvDtype
) -> tuple[pd.DataFrame, str] | None:
    table = newest_table(chip, engine, file)
    if table is None:
        return None
    rows = table.rows
    if "window_size" not in rows:
        rows = rows.assign(window_size=0)
    keys = ("num_heads", "num_key_value_heads", "head_dim", "window_size")
    wanted = rows["kv_cache_dtype"] == KV_FORMATS[kv]
    for key, value in zip(keys, geometry, strict=True):
        wanted &= rows[key] == value
    return rows[wanted], table.name


def _latent_rows(
    file: str, chip: str, engine: str, heads: int, kv: KvDtype
) -> tuple[pd.DataFrame, str] | None:
    table = newest_table(chip, engine, file)
    if table is None:
        return None
    rows = table.rows
    return rows[(rows["num_heads"] == heads) & (rows["kv_cache_dtype"] == KV_FORMATS[kv])], (
        table.name
    )


def _decode(rows: pd.DataFrame, name: str, window: int) -> AttentionLaw | None:
    """`step` tokens are cached, and the one processed attends to itself too."""
    requests, step, seconds = _fastest(rows, "step")
    context = step + 1.0
    seen = np.minimum(context, window) if window else context
    return _law(requests, requests * seen, seconds, name)


def _prefill(rows: pd.DataFrame, name: str, window: int) -> AttentionLaw | None:
    prompts, length, seconds = _fastest(rows[rows["step"] == 0], "isl")
    inside = np.minimum(length, window) if window else length
    pairs = inside * length - inside * (inside - 1.0) / 2.0
    return _law(prompts * length, prompts * pairs, seconds, name)


def _fastest(rows: pd.DataFrame, length: str) -> tuple[Floats, Floats, Floats]:
    """Batch, length and seconds of the engine's fastest kernel at each of them."""
    best = rows.groupby(["batch_size", length])["latency"].min()
    best = best[best > 0]
    batch, lengths = (best.index.get_level_values(n).to_numpy(dtype=np.float64) for n in (0, 1))
    return batch, lengths, best.to_numpy(dtype=np.float64) * 1e-3


def _law(items: Floats, units: Floats, seconds: Floats, name: str) -> AttentionLaw | None:
    if len(seconds) < _LEAST_ROWS:
        return None
    columns = np.column_stack([np.ones_like(items), items, units])
    size = columns.max(axis=0)
    scaled, _ = nnls(columns / size / seconds[:, None], np.ones_like(seconds))
    call, item, unit = (float(value) for value in scaled / size)
    error = float(np.median(np.abs(columns @ (scaled / size) / seconds - 1.0)))
    origin = f"{name}, {len(seconds)} rows, their law {error:.0%} off (median)"
    return AttentionLaw(call, item, unit, origin)
