"""How a model divides over the chips of one replica: layers over stages, heads, experts, KV.

Layer kinds are taken as evenly mixed over the stages, so a stage of `n` layers holds `n / layers`
of each kind. Attention and dense layers split over the `tp` ranks and are repeated on each of the
`dp` attention ranks; routed experts split over all tp x dp ranks, whole over `ep` of them.
"""

from __future__ import annotations

import math

from spaces.chip import ChipSpec
from spaces.model import (
    AttentionGroup,
    DenseFfn,
    GqaAttention,
    ModelSpec,
    MoeFfn,
    RecurrentAttention,
)
from spaces.plan import Pool, Precision
from spaces.precision import BYTES_PER_WEIGHT, KvDtype

_CHIPS_OF_A_NODE = 8  # a scale-up domain beyond one node is a rack that can hold several pools


def stage_layers(layers: int, stages: int) -> list[int]:
    """Layers of each pipeline stage; the first stages take one more where it does not divide.

    >>> stage_layers(61, 4)
    [16, 15, 15, 15]
    """
    whole, rest = divmod(layers, stages)
    return [whole + (stage < rest) for stage in range(stages)]


def share_scaleup_domain(pool: Pool, chip: ChipSpec, other: Pool, other_chip: ChipSpec) -> bool:
    """Whether both pools fit together into one scale-up domain larger than a node."""
    domain = chip.scaleup_size
    return chip == other_chip and domain > _CHIPS_OF_A_NODE and pool.chips + other.chips <= domain


def kv_heads_per_chip(group: GqaAttention, tp: int) -> int:
    """KV heads one rank keeps: its share, or one copied head when there are fewer than ranks."""
    return max(1, math.ceil(group.kv_heads / tp))


def attention_parameters_per_chip(group: AttentionGroup, hidden_size: int, tp: int) -> float:
    """Weights of one attention layer on one rank.

    Projections with heads are split. Repeated on each rank are what every head reads (low-rank
    inputs of latent attention, compressed entries), indexers, and KV projections beyond the KV
    heads.
    """
    repeated = group.repeated_parameters(hidden_size)
    split = group.parameters_per_layer(hidden_size) - repeated
    if isinstance(group, GqaAttention):
        kv = group.kv_parameters(hidden_size)
        kept = kv * kv_heads_per_chip(group, tp) / group.kv_heads
        return repeated + kept + (split - kv) / tp
    return repeated + split / tp


def feed_forward_parameters_per_chip(group: DenseFfn | MoeFfn, hidden_size: int, tp: int) -> float:
    """Weights of one feed-forward layer on one rank, routed experts left out.

    Router and latent projections are repeated on each rank.
    """
    if isinstance(group, DenseFfn):
        return group.parameters_per_layer(hidden_size) / tp
    shared = group.shared_expert_parameters(hidden_size)
    return group.shared_parameters_per_layer(hidden_size) - shared + shared / tp


def linear_bytes_per_chip(model: ModelSpec, pool: Pool, precision: Precision) -> float:
    """Weight bytes of attention, dense and shared layers on a chip of the fullest stage."""
    parameters = sum(
        group.layers * attention_parameters_per_chip(group, model.hidden_size, pool.tp)
        for group in model.attention
    ) + sum(
        group.layers * feed_forward_parameters_per_chip(group, model.hidden_size, pool.tp)
        for group in model.ffn
    )
    parameters += model.parts * model.mixer_parameters
    width = BYTES_PER_WEIGHT[model.weights(precision.weights).linear]
    return parameters * width * fullest_stage_share(model, pool)


def expert_bytes_per_chip(model: ModelSpec, pool: Pool, precision: Precision) -> float:
    """Weight bytes of routed experts on a chip of the fullest stage."""
    width = BYTES_PER_WEIGHT[model.weights(precision.weights).routed_experts]
    per_rank = model.routed_parameters * width / (pool.tp * pool.dp)
    return per_rank * fullest_stage_share(model, pool)


def embedding_bytes_per_chip(model: ModelSpec, pool: Pool, precision: Precision) -> float:
    """Bytes of input embedding and LM head on one chip; with stages, of the larger end alone."""
    width = BYTES_PER_WEIGHT[model.weights(precision.weights).embeddings]
    matrix = model.vocab_size * model.hidden_size * width / pool.tp
    both_on_one = pool.pp == 1 and not model.tied_embeddings
    return matrix * (2 if both_on_one else 1)


def fullest_stage_share(model: ModelSpec, pool: Pool) -> float:
    """Share of the layers in the fullest pipeline stage."""
    return stage_layers(model.layers, pool.pp)[0] / model.layers


def kv_bytes_per_chip(group: AttentionGroup, tp: int, kv: KvDtype) -> float:
    """Bytes one token adds to the cache of one layer on one rank.

    Grouped-query heads are split down to one head a rank; latents, compressed entries and index
    keys are never split.
    """
    if not isinstance(group, GqaAttention):
        return group.kv_bytes_per_token(kv)
    kept = kv_heads_per_chip(group, tp)
    one = group.model_copy(update={"heads": kept, "kv_heads": kept})
    return one.kv_bytes_per_token(kv)


def kv_bytes_per_token_per_chip(
    model: ModelSpec, pool: Pool, kv: KvDtype, *, windowed: bool = False
) -> float:
    """KV bytes one token of a request adds to each chip of its attention rank (fullest stage).

    `windowed` selects the sliding-window layers, which stop growing at the window, instead of
    those that keep the whole context.
    """
    held = sum(
        group.layers * kv_bytes_per_chip(group, pool.tp, kv)
        for group in model.attention
        if (group.window_tokens > 0) == windowed
    )
    return held * fullest_stage_share(model, pool)


def fixed_bytes_per_request_per_chip(model: ModelSpec, pool: Pool, kv: KvDtype) -> float:
    """What one request holds whatever its length, on each chip of its attention rank.

    Recurrent states are split over the ranks with their heads, full windows of entries are not.
    """
    held = 0.0
    for group in model.attention:
        ranks = pool.tp if isinstance(group, RecurrentAttention) else 1
        held += group.layers * group.fixed_bytes(kv) / ranks
    return held * fullest_stage_share(model, pool)
