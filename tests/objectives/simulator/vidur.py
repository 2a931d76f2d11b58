"""Feeds operator tables and workloads of another simulator (Vidur) to ours.

The tables are times per layer: token-wise operators by tokens of a step (read at the next multiple
of eight, KV save at the exact count), decode attention by requests and mean context, prefill
attention by cached context and root of the sum of squared chunks.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from objectives.cost.step_costs import AttentionTables, StepCosts
from objectives.simulator import PoolSetup
from objectives.workload.workload import Workload
from tests.objectives.simulator.worlds import workload_of

CONTEXT_STEP = 64
CHUNK, BATCH_CAP = 512, 128
SAVE = "attn_kv_cache_save"
SENT = "send_recv"


@dataclass(frozen=True)
class Model:
    """What one of its runs serves: layers, pipeline stages, KV blocks of 16 tokens."""

    folder: str
    layers: int
    stages: int
    kv_blocks: int
    grouped_query: bool


SMALL = Model("ops_llama2_7b_a100_tp1", 32, 1, 7424, grouped_query=False)


def costs(data: Path, model: Model) -> StepCosts:
    """Step costs from the tables: every token count exactly, attention by table."""
    folder = data / "peer" / "vidur" / model.folder
    layers = model.layers // model.stages
    tokens = pd.read_csv(folder / "token_ops_ms.csv.gz").set_index("num_tokens").sort_index()
    grid = tokens.index.to_numpy()
    per_layer = [name for name in tokens.columns if name not in (SAVE, SENT, "all_reduce")]
    rounded = tokens.loc[np.minimum(-(-grid // 8) * 8, grid[-1])]
    # The profile has one normalisation and addition a layer where the model has two of some.
    step_ms = layers * (rounded[per_layer].sum(axis=1).to_numpy() + tokens[SAVE].to_numpy())
    if "all_reduce" in tokens:
        step_ms = step_ms + layers * 2 * (rounded["all_reduce"].to_numpy() + 0.02)
    sent_ms = rounded[SENT].to_numpy() if SENT in tokens else np.zeros(len(grid))
    stages = [step_ms + sent_ms] * (model.stages - 1) + [step_ms]
    token_s = np.array(stages) / 1e3
    zeros = np.zeros(model.stages)
    return StepCosts(
        grid=np.concatenate([[0], grid]),
        token_s=np.concatenate([token_s[:, :1], token_s], axis=1),
        expert_s=np.zeros((model.stages, len(grid) + 1)),
        graph_tokens=np.arange(BATCH_CAP + 1),
        eager_s=zeros,
        launch_s=zeros,
        decode_base_s=zeros,
        decode_request_s=zeros,
        decode_token_s=zeros,
        decode_window_token_s=zeros,
        prefill_base_s=zeros,
        pair_s=zeros,
        window_pair_s=zeros,
        read_s=zeros,
        chunk_token_s=zeros,
        window_tokens=0,
        host_s=0.0,
        request_s=0.0,
        tables=attention(folder, layers, model.grouped_query),
    )


def attention(folder: Path, layers: int, grouped_query: bool) -> AttentionTables:
    """Attention of a stage by table."""
    decode = pd.read_csv(folder / "attn_decode_ms.csv.gz")
    prefill = pd.read_csv(folder / "attn_prefill_ms.csv.gz")
    several = 1.1 if grouped_query else 1.0
    return AttentionTables(
        context_tokens=CONTEXT_STEP,
        decode_s=_pivot(decode, "batch_size", "avg_kv_tokens_roundup64", layers),
        prefill_s=_pivot(prefill, "kv_tokens_before_roundup64", "chunk_tokens", layers),
        several_decodes=several,
        several_chunks=several,
    )


def _pivot(table: pd.DataFrame, rows: str, columns: str, layers: int) -> np.ndarray:
    """A table [row, column] in seconds of a stage; contexts become multiples of the step."""
    table = table.copy()
    for name in (rows, columns):
        if "roundup64" in name:
            table[name] //= CONTEXT_STEP
    wide = table.pivot(index=rows, columns=columns, values=table.columns[-1]) * layers / 1e3
    row_count, column_count = int(table[rows].max()) + 1, int(table[columns].max()) + 1
    full = wide.reindex(index=range(row_count), columns=range(column_count))
    return full.ffill().bfill().to_numpy()


def pool(data: Path, model: Model, replicas: int = 1) -> PoolSetup:
    """A pool that batches as its Sarathi scheduler does."""
    return PoolSetup(
        role="aggregated",
        replicas=replicas,
        ranks=1,
        seats=BATCH_CAP,
        step_tokens=CHUNK,
        alternating=False,
        kv_blocks=model.kv_blocks,
        request_blocks=0,
        costs=costs(data, model),
        watermark_blocks=round(0.01 * model.kv_blocks),
        flight_requests=BATCH_CAP // model.stages if model.stages > 1 else None,
    )


def answers(data: Path, case: str) -> pd.DataFrame:
    """Requests of a case with the times the other simulator gave them."""
    path = next((data / "peer" / "vidur" / "requests").glob(f"{case}*.csv.gz"))
    return pd.read_csv(path)


def workload(table: pd.DataFrame) -> Workload:
    """The requests of a case."""
    return workload_of(
        table["arrived_at_s"].to_numpy(),
        table["prefill_tokens"].to_numpy(),
        table["decode_tokens"].to_numpy(),
    )
