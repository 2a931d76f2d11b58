"""What a step with prefill chunks costs the host where it launches every kernel by itself."""

from __future__ import annotations

from objectives.cost.layers import (
    HEADS_NORM_KERNELS,
    attention_operators,
    feed_forward_operators,
    is_normed_over_ranks,
    mixer_operators,
)
from objectives.cost.machine import SECONDS_PER_US, Machine
from spaces.model import AttentionGroup, ModelSpec, MoeFfn
from spaces.plan import Pool
from spaces.precision import Dtype

# Formats in which FlashInfer's kernels choose the experts themselves on Blackwell; gpt-oss (mxfp4)
# calls them so that a graph can hold them.
_CHOSEN_BY_KERNEL: tuple[Dtype, ...] = ("fp8", "nvfp4")


def launch_s(
    machine: Machine, model: ModelSpec, pool: Pool, experts: Dtype, drafts: bool
) -> float:
    """Seconds the host needs to launch a step of all layers, 0 where CUDA graphs do.

    The operators of this cost model (products, small kernels, looks at the context, routed
    experts, exchanges) times what the host takes for one (`launches` in `overheads.yaml`).
    `experts` is the format of routed experts.
    """
    rule = machine.overheads.launches.of(machine.engine, machine.chip.vendor)
    if rule is None:
        return 0.0
    blackwell = machine.chip.fp4_tflops is not None and experts in _CHOSEN_BY_KERNEL
    own = model.moe is not None and blackwell and not machine.runs_triton(experts)
    if rule.in_graph(machine.release, pool, drafts=drafts, vendor_experts=own):
        return 0.0
    return operators_of_step(machine, model, pool) * rule.operator_us * SECONDS_PER_US


def operators_of_step(machine: Machine, model: ModelSpec, pool: Pool) -> int:
    """Operators of a forward pass through all layers on one chip, exchanges among them."""
    exchange = int(pool.tp * pool.dp > 1)
    found = mixer_operators(model.residual_streams) * model.parts
    for attention in model.attention:
        one = attention_operators(machine, attention, model.hidden_size, pool.tp)
        found += attention.layers * (one + _exchanges(attention, pool.tp))
    for ffn in model.ffn:
        one = feed_forward_operators(machine, ffn, model.hidden_size, pool.tp)
        apart = isinstance(ffn, MoeFfn) and not pool.holds_experts
        found += ffn.layers * (one + (0 if apart else exchange))
    return found


def _exchanges(attention: AttentionGroup, tp: int) -> int:
    """The sum that ends the layer, and a norm over all heads: its kernels and their exchange."""
    return int(tp > 1) + (1 + HEADS_NORM_KERNELS) * is_normed_over_ranks(attention, tp)
