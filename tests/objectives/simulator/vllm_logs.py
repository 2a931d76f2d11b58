"""Feeds measured layer profiles and real vLLM request logs to the simulator.

The profiles are times of one layer's operators on the machine that served the logs: linear ones
by tokens, attention by (prompt chunk, its cached tokens, decoding requests, their context), the
LM head and sampler by sequences, routed experts by tokens and activated experts.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.interpolate import RegularGridInterpolator

from objectives.cost.step_costs import AttentionTables, StepCosts
from objectives.simulator import PoolSetup, Scenario
from objectives.workload.workload import Workload
from tests.objectives.simulator.worlds import workload_of

STEP_TOKENS = 2048
BLOCK = 16
CONTEXT_STEP = 64
MEAN_CONTEXT = 1200
BESIDE_CHUNK = 512  # the chunk beside which attention of decoding requests is read

# What no profile of layers tells of a step: the host's part per request, and what a layer loses
# where a chunk keeps the step out of its full CUDA graph, as the project's cost model has them
# (objectives/cost/overheads.yaml). The part per step does not show: these servers scheduled
# asynchronously (their resolved configuration, published with the logs), so that it passes while
# the step before it computes.
REQUEST_S, EAGER_LAYER_S = 7.7e-6, 46e-6

# The line between the two RTX PRO 6000 as measured by the publisher of the logs (its ring model's
# 16.37 GiB/s, 16.1 us a hop): an all-reduce is two hops, a gather or a reduce-scatter one.
LINK_BYTES_PER_S = 16.37 * 2**30
HOP_S = 16.1e-6

# Distinct experts of Qwen3-30B-A3B over those of a uniform gate, by tokens: measured by the same
# publisher over 110,640 calls of the gate (1 at one token, 0.87 through the middle, 0.94 in a
# saturated decode).
EXPERTS, TOP_K = 128, 8
GATE_TOKENS, GATE_SHARE = (1, 8, 32, 128), (1.0, 0.87, 0.87, 0.94)
VOCABULARY = 151_936  # of both Qwen3 models
BF16_BYTES = 2.0
WHOLE_MODEL = ("embedding", "final_layernorm")
TWICE = ("layernorm",)


@dataclass(frozen=True)
class Case:
    """A deployment whose log we have; `kv_blocks` of 16 tokens, `hits` of the prompt tokens.

    Over `dp` attention ranks routed experts are spread, whole.
    """

    machine: str
    model: str
    layers: int
    seats: int
    kv_blocks: int
    hits: float
    tp: int = 1
    dp: int = 1
    hidden: int = 0

    @property
    def profile(self) -> str:
        """The stem of its profile's files."""
        return f"profile_{self.machine}_{self.model}_tp{self.tp}"


def requests(data: Path, case: Case) -> pd.DataFrame:
    """The log: one row a request, times in seconds."""
    name = f"{case.machine}_{case.model}_vllm_requests.csv.gz"
    return pd.read_csv(data / "peer" / "llmservingsim" / name)


def workload(log: pd.DataFrame, hits: float) -> Workload:
    """Its requests, whose prompts begin with as many common blocks as give the hits told of."""
    inputs = log["input_tokens"].to_numpy()
    common = _common_blocks(inputs, hits)
    chains, number = [], int(common.max())
    for length, shared in zip(inputs.tolist(), common.tolist(), strict=True):
        own = -(-length // BLOCK) - shared
        chains.append([*range(shared), *range(number, number + own)])
        number += own
    outputs = log["output_tokens"].to_numpy()
    return workload_of(log["arrival_s"].to_numpy(), inputs, outputs, chains, BLOCK)


def _common_blocks(inputs: np.ndarray, hits: float) -> np.ndarray:
    """Whole blocks of each prompt, as even as possible, that sum to the share of all tokens."""
    wanted = np.full(len(inputs), hits * inputs.sum() / BLOCK / len(inputs))
    for _ in range(20):  # short prompts cannot have their share, the others take it
        given = np.minimum(wanted, (inputs - 1) // BLOCK)
        wanted *= hits * inputs.sum() / BLOCK / given.sum()
    blocks: np.ndarray = np.diff(np.floor(np.cumsum(given)), prepend=0.0).astype(int)
    return blocks


def pool(data: Path, case: Case) -> PoolSetup:
    """The pool that served the log."""
    return PoolSetup(
        role="aggregated",
        replicas=1,
        ranks=case.dp,
        seats=case.seats,
        step_tokens=STEP_TOKENS,
        alternating=False,
        kv_blocks=case.kv_blocks,
        request_blocks=0,
        costs=costs(data / "peer" / "llmservingsim", case),
    )


def scenario(data: Path, case: Case) -> Scenario:
    """The deployment that served the log."""
    return Scenario((pool(data, case),), block_tokens=BLOCK)


def costs(folder: Path, case: Case) -> StepCosts:
    """Step costs from a profile."""
    grid = np.arange(STEP_TOKENS * case.dp + 1)
    zeros = np.zeros(1)
    return StepCosts(
        grid=grid,
        token_s=(_linear(folder, case, grid) + _exchange(case, grid))[None],
        expert_s=_experts(folder, case, grid)[None],
        graph_tokens=_captured(np.arange(case.seats + 1)),
        eager_s=np.array([EAGER_LAYER_S * case.layers]),
        launch_s=zeros,
        decode_base_s=zeros,
        decode_request_s=zeros,
        decode_token_s=zeros,
        decode_window_token_s=zeros,
        prefill_base_s=zeros,
        chunk_token_s=zeros,
        pair_s=zeros,
        window_pair_s=zeros,
        read_s=zeros,
        window_tokens=0,
        host_s=0.0,
        request_s=REQUEST_S,
        tables=_attention(folder, case),
    )


def _captured(requests: np.ndarray) -> np.ndarray:
    """The CUDA graph each count runs in: 1, 2, 4 and multiples of 8 (the logs' configuration)."""
    small = 2 ** np.ceil(np.log2(np.maximum(requests, 1))).astype(int)
    padded = np.where(requests <= 4, small, -(-requests // 8) * 8)
    return np.asarray(np.where(requests == 0, 0, padded))


def _linear(folder: Path, case: Case, grid: np.ndarray) -> np.ndarray:
    """Seconds of all but attention by tokens of a step.

    Sequences, of which the LM head gives one token each, are as many up to what the KV holds.
    """
    sequences = min(case.seats, case.kv_blocks * BLOCK // MEAN_CONTEXT)
    dense = pd.read_csv(folder / f"{case.profile}_dense.csv.gz")
    total = np.zeros(len(grid))
    for layer, rows in dense.groupby("layer"):
        times = 1 if layer in WHOLE_MODEL else case.layers * (2 if layer in TWICE else 1)
        total += times * np.interp(grid, rows["tokens"], rows["time_us"])
    heads = pd.read_csv(folder / f"{case.profile}_per_sequence.csv.gz")
    for _, rows in heads.groupby("layer"):
        total += np.interp(np.minimum(grid, sequences), rows["sequences"], rows["time_us"])
    return total * 1e-6


def _exchange(case: Case, grid: np.ndarray) -> np.ndarray:
    """What ranks send one another, by tokens of a rank.

    Tensor parallel: two all-reduces a layer and one of the embeddings, and a gather of the logits.
    Expert parallel: each layer gathers all ranks' tokens and scatters their sums.
    """
    sent_s = grid * case.hidden * BF16_BYTES / LINK_BYTES_PER_S
    if case.tp > 1:
        reduce_s = 2 * (case.tp - 1) * (HOP_S + sent_s / case.tp)
        logits = np.minimum(grid, case.seats) * VOCABULARY / case.tp * BF16_BYTES
        return np.asarray((2 * case.layers + 1) * reduce_s + HOP_S + logits / LINK_BYTES_PER_S)
    return np.asarray(2 * case.layers * (case.dp - 1) * (HOP_S + sent_s))


def _experts(folder: Path, case: Case, grid: np.ndarray) -> np.ndarray:
    """Routed experts of a rank by tokens of all ranks.

    It has its share of the (token, expert) pairs, as if so many fewer tokens had come, and reads
    its share of the distinct experts.
    """
    path = folder / f"{case.profile}_moe.csv.gz"
    if not path.exists():
        return np.zeros(len(grid))
    tokens = np.maximum(grid, 1)
    uniform = EXPERTS * (1 - (1 - TOP_K / EXPERTS) ** tokens)
    reached = uniform * np.interp(np.log2(tokens), np.log2(GATE_TOKENS), GATE_SHARE) / case.dp
    pairs = np.maximum(tokens / case.dp, 1)
    table = pd.read_csv(path)
    return case.layers * _read(table, "tokens", "activated_experts", pairs, reached)


def _attention(folder: Path, case: Case) -> AttentionTables:
    """Attention of all layers: decode by requests and mean context, chunks by both lengths."""
    profile = pd.read_csv(folder / f"{case.profile}_attention.csv.gz")
    # Contexts are rounded up to an entry, so that each stands for the middle of its bucket.
    contexts = np.maximum(0, np.arange(0, 16384 + 1, CONTEXT_STEP) - CONTEXT_STEP // 2)
    decode = profile[profile["prefill_chunk"] == 0]
    chunks = profile[profile["n_decode"] == 0]
    requests = np.arange(257)
    beside = profile[(profile["prefill_chunk"] == BESIDE_CHUNK) & (profile["kv_prefill"] == 0)]
    alone_s = chunks.loc[
        (chunks["prefill_chunk"] == BESIDE_CHUNK) & (chunks["kv_prefill"] == 0), "time_us"
    ].item()
    beside = beside.assign(time_us=beside["time_us"] - alone_s)
    return AttentionTables(
        context_tokens=CONTEXT_STEP,
        decode_s=case.layers * _surface(decode, "n_decode", "kv_decode", requests, contexts),
        mixed_decode_s=case.layers * _surface(beside, "n_decode", "kv_decode", requests, contexts),
        prefill_s=case.layers
        * _surface(chunks, "kv_prefill", "prefill_chunk", contexts, np.arange(STEP_TOKENS + 1)),
    )


def _surface(
    table: pd.DataFrame, rows: str, columns: str, at_rows: np.ndarray, at_columns: np.ndarray
) -> np.ndarray:
    """Seconds of a layer at every pair of a row and a column [rows, columns]."""
    mesh = np.meshgrid(at_rows, at_columns, indexing="ij")
    return _read(table, rows, columns, *mesh)


def _read(
    table: pd.DataFrame, rows: str, columns: str, at_rows: np.ndarray, at_columns: np.ndarray
) -> np.ndarray:
    """Seconds of a layer, interpolated linearly in both directions and kept at the ends."""
    wide = table.pivot_table(index=rows, columns=columns, values="time_us")
    wide = wide.interpolate(axis=1, limit_direction="both").interpolate(axis=0)
    axes = (wide.index.to_numpy(), wide.columns.to_numpy())
    points = [
        np.clip(at, axis.min(), axis.max())
        for at, axis in zip((at_rows, at_columns), axes, strict=True)
    ]
    seconds: np.ndarray = (
        RegularGridInterpolator(axes, wide.to_numpy())(np.stack(points, -1)) * 1e-6
    )
    return seconds
