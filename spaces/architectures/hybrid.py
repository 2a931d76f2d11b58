"""Architectures that mix linear attention with grouped-query attention."""

from __future__ import annotations

from spaces.architectures.grouped import qwen_dense_layers
from spaces.architectures.parts import (
    Group,
    Shapes,
    dense,
    dense_and_moe,
    gqa,
    layer_kinds,
    with_layers,
)
from spaces.config_keys import ConfigKeys


def qwen3_next(config: ConfigKeys) -> Shapes:
    """Qwen3-Next and the mixtures of Qwen 3.5: Gated DeltaNet, experts with a shared one."""
    layers = config.count("num_hidden_layers")
    size = config.count("shared_expert_intermediate_size", 0, least=0)
    moe = {
        "routed_experts": config.count("num_experts"),
        "top_k": config.count("num_experts_per_tok"),
        "expert_intermediate_size": config.count("moe_intermediate_size"),
        "shared_experts": int(size > 0),
        "shared_intermediate_size": size,
    }
    plain = qwen_dense_layers(config, layers)
    config.value("intermediate_size")  # stands there even where no layer is dense
    mixed = {"kind": "moe", "layers": layers, **moe}
    ffn = dense_and_moe(config, plain, layers - plain, moe) if plain else [mixed]
    return {"attention": _qwen_hybrid(config, layers), "ffn": ffn}


def qwen3_5(config: ConfigKeys) -> Shapes:
    """Qwen 3.5, dense."""
    layers = config.count("num_hidden_layers")
    config.only("mlp_only_layers", [])
    return {"attention": _qwen_hybrid(config, layers), "ffn": [dense(config, layers)]}


def _qwen_hybrid(config: ConfigKeys, layers: int) -> list[Group]:
    """Gated DeltaNet layers, with full attention in every fourth layer unless said otherwise."""
    config.only("mamba_ssm_dtype", "float32")
    every = config.count("full_attention_interval", 4)
    types = layer_kinds(config, "layer_types", layers, "linear_attention", "full_attention")
    full = types.count("full_attention") if types else layers // every
    recurrent = {
        "kind": "gdn",
        "layers": layers - full,
        "key_heads": config.count("linear_num_key_heads"),
        "value_heads": config.count("linear_num_value_heads"),
        "key_head_dim": config.count("linear_key_head_dim"),
        "value_head_dim": config.count("linear_value_head_dim"),
        "conv_kernel": config.count("linear_conv_kernel_dim"),
    }
    bias, gate = config.flag("attention_bias"), config.flag("attn_output_gate", True)
    return with_layers([recurrent]) + gqa(config, [0] * full, bias=bias, output_gate=gate)


def nemotron_h(config: ConfigKeys) -> Shapes:
    """Nemotron-H and Nemotron 3: every layer is one part, Mamba, attention, dense or experts."""
    kinds = _nemotron_layers(config)
    for key in ("use_bias", "mamba_proj_bias"):
        config.only(key, False)
    config.only("mamba_ssm_cache_dtype", "float32")
    config.only("mlp_hidden_act", "relu2")
    config.only("sliding_window", None)
    size = config.count("head_dim", config.count("attention_head_dim", 128))
    attention = {
        "kind": "gqa",
        "layers": kinds.count("attention"),
        "heads": config.count("num_attention_heads"),
        "kv_heads": config.count("num_key_value_heads"),
        "head_dim": size,
        "bias": config.flag("attention_bias"),
    }
    plain = dense(config, kinds.count("mlp")) | {"gated": False}
    groups = [plain, *_nemotron_experts(config, kinds.count("moe"))]
    return {
        "attention": with_layers([_mamba(config, kinds.count("mamba")), attention]),
        "ffn": with_layers(groups),
        "single_part_layers": True,
    }


def _nemotron_layers(config: ConfigKeys) -> list[str]:
    """The kind of each layer, from a list of names or a pattern of letters."""
    letters = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
    pattern = config.value("hybrid_override_pattern")
    named = config.items("layers_block_type")
    kinds = named if pattern is None else [letters.get(letter, "") for letter in str(pattern)]
    key = "layers_block_type" if pattern is None else "hybrid_override_pattern"
    layers = config.count("num_hidden_layers", len(kinds))
    if len(kinds) != layers or any(kind not in letters.values() for kind in kinds) or not kinds:
        raise config.error(f"must name {layers} layers as {' or '.join(letters.values())}", key)
    return kinds


def _mamba(config: ConfigKeys, layers: int) -> Group:
    for key in ("chunk_size", "expand", "time_step_limit", "time_step_rank"):
        config.value(key)  # the chunk of prefill, ranges, and widths that the heads say again
    return {
        "kind": "mamba",
        "layers": layers,
        "heads": config.count("mamba_num_heads"),
        "head_dim": config.count("mamba_head_dim"),
        "state_size": config.count("ssm_state_size"),
        "groups": config.count("n_groups"),
        "conv_kernel": config.count("conv_kernel"),
    }


def _nemotron_experts(config: ConfigKeys, layers: int) -> list[Group]:
    if not layers:
        return []
    shared = config.count("n_shared_experts", 0, least=0)
    width = config.count("moe_shared_expert_intermediate_size") if shared else 0
    return [
        {
            "kind": "moe",
            "layers": layers,
            "routed_experts": config.count("n_routed_experts"),
            "top_k": config.count("num_experts_per_tok"),
            "expert_intermediate_size": config.count("moe_intermediate_size"),
            "shared_experts": shared,
            "shared_intermediate_size": width,
            "latent_size": config.count("moe_latent_size", 0, least=0),
            "gated": False,
        }
    ]
