"""What fills the HBM of a chip, and how much is left for KV."""

from __future__ import annotations

import math
from dataclasses import dataclass

from spaces.chip import ChipSpec
from spaces.model import ModelSpec
from spaces.plan import DeploymentPlan, Pool
from spaces.precision import BYTES_PER_WEIGHT
from spaces.sharding import (
    embedding_bytes_per_chip,
    expert_bytes_per_chip,
    fixed_bytes_per_request_per_chip,
    kv_bytes_per_token_per_chip,
    linear_bytes_per_chip,
)
from spaces.speculation import draft_head, joining_parameters, served_model

# CUDA or HIP context, collective buffers and captured graphs. An estimate: engines report 2 to
# 4 GB a chip beside weights and KV.
RUNTIME_BYTES = 3e9


@dataclass(frozen=True, slots=True)
class HbmLedger:
    """One chip's memory in bytes, entry by entry (the fullest pipeline stage)."""

    hbm_bytes: float
    usable_bytes: float
    linear_bytes: float
    expert_bytes: float
    embedding_bytes: float
    activation_bytes: float
    runtime_bytes: float
    kv_bytes_per_token: float
    request_bytes: float

    @property
    def weight_bytes(self) -> float:
        """All weights."""
        return self.linear_bytes + self.expert_bytes + self.embedding_bytes

    @property
    def kv_budget_bytes(self) -> float:
        """What is left for KV; negative when the weights alone do not fit."""
        taken = self.weight_bytes + self.activation_bytes + self.runtime_bytes
        return self.usable_bytes - taken

    def kv_blocks(self, block_size: int) -> int:
        """KV blocks of `block_size` tokens that fit; none where no KV is kept."""
        if not self.kv_bytes_per_token:
            return 0
        return max(0, math.floor(self.kv_budget_bytes / (block_size * self.kv_bytes_per_token)))

    def request_blocks(self, block_size: int) -> int:
        """Blocks' worth of memory each running request needs beside its tokens."""
        if not self.kv_bytes_per_token:
            return 0
        return math.ceil(self.request_bytes / (block_size * self.kv_bytes_per_token))

    def sentence(self) -> str:
        """Where the memory goes, in GB, for a message."""
        parts = {
            "experts": self.expert_bytes,
            "other layers": self.linear_bytes,
            "embeddings": self.embedding_bytes,
            "activations": self.activation_bytes,
            "runtime": self.runtime_bytes,
        }
        told = ", ".join(f"{name} {size / 1e9:.1f}" for name, size in parts.items() if size)
        return f"{told} of {self.usable_bytes / 1e9:.1f} GB usable"


def hbm_ledger(
    model: ModelSpec,
    chip: ChipSpec,
    pool: Pool,
    plan: DeploymentPlan,
    longest_request_tokens: int | None = None,
) -> HbmLedger:
    """The memory of a chip of `pool`.

    A sliding window's KV and a recurrent state do not grow with the context: they are counted
    once for each running request (`request_bytes`), windows as full. Where no request is longer
    than the window, its layers grow like the others. Sparse attention reads a part of what it
    keeps, and all that is kept counts here. A draft head counts as one more layer, whose
    projection of its inputs every chip holds whole. Where decode is split, routed experts lie on
    the chips of their pool and everything else on those of attention.
    """
    if pool.role == "decode-experts":
        return _experts_ledger(model, chip, pool, plan)
    settings = plan.settings(pool)
    precision = settings.precision
    joining = _joining_bytes(model, plan)
    model = served_model(model, plan.speculation)
    window = kv_bytes_per_token_per_chip(model, pool, precision.kv, windowed=True)
    growing = kv_bytes_per_token_per_chip(model, pool, precision.kv)
    longest = longest_request_tokens or plan.max_model_len or model.max_context_tokens
    if not growing or longest <= model.window_tokens:
        growing, window = growing + window, 0.0
    return HbmLedger(
        hbm_bytes=chip.hbm_bytes,
        usable_bytes=chip.hbm_bytes * settings.hbm_fraction,
        linear_bytes=linear_bytes_per_chip(model, pool, precision) + joining,
        expert_bytes=expert_bytes_per_chip(model, pool, precision) if pool.holds_experts else 0.0,
        embedding_bytes=embedding_bytes_per_chip(model, pool, precision),
        activation_bytes=activation_bytes(model, pool),
        runtime_bytes=RUNTIME_BYTES,
        kv_bytes_per_token=growing,
        request_bytes=window * model.window_tokens
        + fixed_bytes_per_request_per_chip(model, pool, precision.kv),
    )


def _experts_ledger(
    model: ModelSpec, chip: ChipSpec, pool: Pool, plan: DeploymentPlan
) -> HbmLedger:
    """Routed experts, a draft layer's too, and the rows of the tokens that come to a chip."""
    model = served_model(model, plan.speculation)
    settings = plan.settings(pool)
    return HbmLedger(
        hbm_bytes=chip.hbm_bytes,
        usable_bytes=chip.hbm_bytes * settings.hbm_fraction,
        linear_bytes=0.0,
        expert_bytes=expert_bytes_per_chip(model, pool, settings.precision),
        embedding_bytes=0.0,
        activation_bytes=_rows_bytes(model, pool),
        runtime_bytes=RUNTIME_BYTES,
        kv_bytes_per_token=0.0,
        request_bytes=0.0,
    )


def _rows_bytes(model: ModelSpec, pool: Pool) -> float:
    """Inputs, inner halves and outputs in bf16 of a step's tokens, evenly over the chips.

    A pool of experts has no batch limits of its own: the default of `Pool`, 8,192 tokens, stands
    for what attention's ranks send, whatever their number and seats (docs/decisions/0010).
    """
    moe = model.moe
    if moe is None:
        return 0.0
    rows = pool.max_num_batched_tokens * moe.top_k / pool.chips_per_replica
    width = moe.expert_width(model.hidden_size)
    return 2.0 * rows * (2 * width + 2 * moe.expert_intermediate_size)


def _joining_bytes(model: ModelSpec, plan: DeploymentPlan) -> float:
    head = draft_head(model, plan.speculation) if plan.speculation else None
    if head is None:
        return 0.0
    width = BYTES_PER_WEIGHT[model.weights(plan.precision.weights).linear]
    return joining_parameters(model, head) * width


def activation_bytes(model: ModelSpec, pool: Pool) -> float:
    """Peak activations of a full step in bf16, an estimate from shapes.

    The widest moment holds, for each token of the step, the residual stream twice and the widest
    inner layer: the gate and up halves of a dense layer, or the inputs and inner halves of the
    experts a token visits. Further residual streams are held once each. Logits (fp32) are kept for
    each request.
    """
    tokens = pool.max_num_batched_tokens
    inner = 0.0
    for group in model.ffn:
        if group.kind == "dense":
            inner = max(inner, 2 * group.intermediate_size / pool.tp)
        else:
            width = group.expert_width(model.hidden_size)
            inner = max(
                inner, group.top_k * (width + 2 * group.expert_intermediate_size) / pool.tp
            )
    logits = 4.0 * pool.max_num_seqs * model.vocab_size / pool.tp
    streams = 1 + model.residual_streams
    return 2.0 * tokens * (streams * model.hidden_size + inner) + logits


def tier_kv_tokens(model: ModelSpec, pool: Pool, plan: DeploymentPlan, gb_per_chip: float) -> int:
    """Tokens of KV a tier below HBM holds for one attention rank; a latent is stored once."""
    budget = gb_per_chip * 1e9 * pool.tp * pool.pp
    model, kv = served_model(model, plan.speculation), plan.settings(pool).precision.kv
    per_token = model.kv_bytes_per_token(kv) + model.windowed_kv_bytes_per_token(kv)
    return math.floor(budget / per_token)
