"""The vLLM arguments that make one replica of a pool what the plan says, on any target.

Meanings checked in the sources of vLLM 0.31 and 0.33 (`vllm/config`, `vllm/engine/arg_utils.py`):
`--max-num-seqs` and `--max-num-batched-tokens` hold for each data-parallel rank, as in the plan;
experts spread over all tensor x data-parallel ranks or are cut by tensor parallelism, with nothing
between; the offload buffer is counted for one data-parallel rank, over its tensor and pipeline
ranks. Setting `--kv-offloading-size` beside `--kv-transfer-config` would replace the connector
named there, so a transfer and a host tier are joined in a MultiConnector instead.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from spaces.errors import InputError
from spaces.model import GqaAttention, MlaAttention, ModelSpec
from spaces.plan import DeploymentPlan, Pool, Role
from spaces.speculation import draft_head, speculation_conflict

# Kernels for latent attention take blocks of 32, 64 or 128 tokens, according to the chip; 64 and
# its multiples exclude none of the fast ones.
LATENT_BLOCK = 64

_TRANSFER_ROLES: dict[Role, str] = {"prefill": "kv_producer", "decode": "kv_consumer"}
_NAMES = {"mxfp4": "MXFP4", "nvfp4": "NVFP4", "int4": "INT4", "fp8": "FP8", "bf16": "BF16"}


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Which weights to load.

    `name` is empty where the user must choose; `note` then says which kind is needed, and
    otherwise whether anything happens to the weights on loading.
    """

    name: str
    note: str
    arguments: tuple[str, ...] = ()


def check_expressible(plan: DeploymentPlan, model: ModelSpec) -> None:
    """Raise `InputError` for a plan that no vLLM command line can describe."""
    _check_drafts(plan, model)
    for pool in plan.pools:
        _check_experts(pool, model)
        _check_batch(pool)
    if plan.topology == "prefill-decode":
        for pool in plan.pools:
            _check_stages(pool)
        _check_transfer(plan.pool("prefill"), plan.pool("decode"), model)


def engine_arguments(plan: DeploymentPlan, pool: Pool, model: ModelSpec) -> tuple[str, ...]:
    """Flags of one replica, but for addresses, ports and the spreading over nodes."""
    parallel = [
        *("--tensor-parallel-size", str(pool.tp)),
        *("--pipeline-parallel-size", str(pool.pp)),
        *(("--data-parallel-size", str(pool.dp)) if pool.dp > 1 else ()),
        *(("--enable-expert-parallel",) if pool.ep > 1 else ()),
    ]
    limits = [
        *("--max-num-seqs", str(pool.max_num_seqs)),
        *("--max-num-batched-tokens", str(pool.max_num_batched_tokens)),
        *(("--max-model-len", str(plan.max_model_len)) if plan.max_model_len else ()),
        *("--gpu-memory-utilization", repr(plan.settings(pool).hbm_fraction)),
    ]
    cache = [
        *("--kv-cache-dtype", {"bf16": "bfloat16", "fp8": "fp8"}[plan.precision.kv]),
        *(("--block-size", str(plan.block_size)) if block_size_fits(plan, model) else ()),
        "--enable-prefix-caching" if plan.prefix_caching else "--no-enable-prefix-caching",
    ]
    return (
        *("--served-model-name", model.name),
        *parallel,
        *limits,
        *cache,
        *checkpoint(plan, model).arguments,
        *_speculation_arguments(plan, model),
        *_connector_arguments(plan, pool),
    )


def checkpoint(plan: DeploymentPlan, model: ModelSpec) -> Checkpoint:
    """The weights that give the plan's precision.

    vLLM converts bf16 weights to fp8 while loading (128x128 blocks, the format the memory figures
    assume); any other conversion needs a checkpoint that was made in that format.
    """
    asked, native = plan.precision.weights, model.native_weights
    if model.weights(asked) == native:
        note = "" if model.hugging_face_id else f"the checkpoint of {model.name}"
        return Checkpoint(model.hugging_face_id, note)
    if asked == "fp8" and native.linear == native.routed_experts == "bf16":
        note = (
            "the bf16 weights are converted to fp8 while loading; with a checkpoint that is fp8 "
            "already, take --quantization out"
        )
        return Checkpoint(model.hugging_face_id, note, ("--quantization", "fp8_per_block"))
    return Checkpoint("", f"a checkpoint of {model.name} with {_NAMES[asked]} weights")


def block_size_fits(plan: DeploymentPlan, model: ModelSpec) -> bool:
    """Whether the plan's KV block size can be asked for without losing the fast kernels.

    Latent attention needs multiples of 64; a recurrent layer lets vLLM enlarge any block, so
    there the size is its own affair.
    """
    if any(isinstance(group, MlaAttention) for group in model.attention):
        return plan.block_size % LATENT_BLOCK == 0
    return all(isinstance(group, GqaAttention) for group in model.attention)


def host_tier_bytes(plan: DeploymentPlan, pool: Pool) -> int:
    """Host memory for KV of one data-parallel rank: its tensor x pipeline chips together."""
    return round(plan.kv.host_gb_per_chip * 1e9 * pool.tp * pool.pp)


def transfer_config(plan: DeploymentPlan, pool: Pool) -> dict[str, object] | None:
    """The KV connectors of a prefill or decode pool; None where nothing is transferred.

    The MultiConnector loads from the first connector that has the tokens: the other pool first,
    then the host. Its own role is `kv_both`, since the host tier loads on the prefill side and
    saves on the decode side.
    """
    if plan.topology == "aggregated":
        return None
    nixl: dict[str, object] = {
        "kv_connector": "NixlConnector",
        "kv_role": _TRANSFER_ROLES[pool.role],
    }
    host_bytes = host_tier_bytes(plan, pool)
    if not host_bytes:
        return nixl
    offloading = {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"cpu_bytes_to_use": host_bytes},
    }
    return {
        "kv_connector": "MultiConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"connectors": [nixl, offloading]},
    }


def _connector_arguments(plan: DeploymentPlan, pool: Pool) -> tuple[str, ...]:
    transfer = transfer_config(plan, pool)
    if transfer is not None:
        return ("--kv-transfer-config", json.dumps(transfer, separators=(",", ":")))
    host_bytes = host_tier_bytes(plan, pool)
    if not host_bytes:
        return ()
    gib = host_bytes / 2**30  # exact: a power of two divides without rounding
    return ("--kv-offloading-size", repr(gib), "--kv-offloading-backend", "native")


def _speculation_arguments(plan: DeploymentPlan, model: ModelSpec) -> tuple[str, ...]:
    """Drafts, in both pools where there are two: their KV has the draft layer's in it."""
    head = draft_head(model, plan.speculation) if plan.speculation else None
    if plan.speculation is None or head is None:
        return ()
    config: dict[str, object] = {
        "method": head.method,
        "num_speculative_tokens": plan.speculation.depth,
    }
    if head.method != "mtp":
        config["model"] = head.hugging_face_id
    return ("--speculative-config", json.dumps(config, separators=(",", ":")))


def _check_drafts(plan: DeploymentPlan, model: ModelSpec) -> None:
    if plan.speculation is None:
        return
    conflict = speculation_conflict(model, plan.speculation)
    head = draft_head(model, plan.speculation)
    if not conflict and head is not None and head.method != "mtp" and not head.hugging_face_id:
        conflict = f"the checkpoint of {model.name}'s draft head {head.name} is not known"
    if conflict:
        raise InputError(
            conflict,
            key="speculation",
            value=plan.speculation.model_dump(mode="json"),
            remedy="choose a point without drafts",
        )
    for pool in plan.pools:
        if pool.pp > 1:
            raise InputError(
                f"vLLM does not draft over pipeline stages: {pool.role} needs pp = 1",
                key="pp",
                value=pool.pp,
            )


def _check_experts(pool: Pool, model: ModelSpec) -> None:
    ranks = pool.tp * pool.dp
    if pool.ep not in (1, ranks):
        raise InputError(
            f"vLLM spreads experts over all tp x dp ranks or over none: {pool.role} needs ep = 1 "
            f"or ep = {ranks}",
            key="ep",
            value=pool.ep,
            remedy="choose another ep, or an engine with an expert-parallel size of its own",
        )
    if pool.ep > 1 and model.moe is None:
        raise InputError(
            f"{model.name} has no experts to spread: {pool.role} needs ep = 1",
            key="ep",
            value=pool.ep,
        )


def _check_batch(pool: Pool) -> None:
    if pool.max_num_batched_tokens < pool.max_num_seqs:
        raise InputError(
            f"vLLM needs max_num_batched_tokens >= max_num_seqs ({pool.max_num_seqs}) in the "
            f"{pool.role} pool",
            key="max_num_batched_tokens",
            value=pool.max_num_batched_tokens,
        )


def _check_stages(pool: Pool) -> None:
    if pool.pp > 1:
        raise InputError(
            f"vLLM's NixlConnector moves KV between pools without pipeline stages: {pool.role} "
            "needs pp = 1",
            key="pp",
            value=pool.pp,
        )


def _check_transfer(prefill: Pool, decode: Pool, model: ModelSpec) -> None:
    """What the connector asserts when two replicas first meet, which is after start-up."""
    small, large = sorted((prefill.tp, decode.tp))
    if large % small:
        raise InputError(
            "vLLM's NixlConnector needs the tp of one pool to be a multiple of the other's",
            key="tp",
            value=f"prefill {prefill.tp}, decode {decode.tp}",
        )
    kv_heads = [group.kv_heads for group in model.attention if isinstance(group, GqaAttention)]
    all_split = len(kv_heads) == len(model.attention)
    if all_split and prefill.tp > max(decode.tp, min(kv_heads)):
        raise InputError(
            f"vLLM's NixlConnector cannot read KV heads that are repeated over prefill ranks: "
            f"prefill needs tp <= {max(decode.tp, min(kv_heads))} here",
            key="tp",
            value=f"prefill {prefill.tp}, decode {decode.tp}, KV heads {min(kv_heads)}",
        )
