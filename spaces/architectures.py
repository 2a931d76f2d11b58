"""What the keys of a `config.json` mean in each architecture: attention and feed-forward groups.

Each reader takes the keys of the text model and gives the groups as they stand in a catalogue
file. A value whose cost no group can express is refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from spaces.config_keys import ConfigKeys

Groups = list[dict[str, Any]]


def _deepseek_v3(config: ConfigKeys) -> tuple[Groups, Groups]:
    """DeepSeek-V3, and Kimi K2 which has its architecture: latent attention, shared experts."""
    layers = config.count("num_hidden_layers")
    config.only("attention_bias", False)
    attention = [_mla(config, layers)]
    moe = {
        "routed_experts": config.count("n_routed_experts"),
        "top_k": config.count("num_experts_per_tok"),
        "expert_intermediate_size": config.count("moe_intermediate_size"),
        **_shared(config, config.count("n_shared_experts", 0, least=0)),
    }
    return attention, _dense_then_moe(config, layers, moe)


def _kimi_linear(config: ConfigKeys) -> tuple[Groups, Groups]:
    """Kimi K3: delta attention beside latent attention, experts in a narrower latent."""
    layers = config.count("num_hidden_layers")
    linear = config.nested("linear_attn_config")
    linear.only("use_full_rank_gate", True)
    kda, full = len(linear.items("kda_layers")), len(linear.items("full_attn_layers"))
    if kda + full != layers:
        raise linear.error(
            f"kda_layers and full_attn_layers must add up to {layers}", "kda_layers"
        )
    attention = [
        {
            "kind": "kda",
            "layers": kda,
            "heads": linear.count("num_heads"),
            "head_dim": linear.count("head_dim"),
            "conv_kernel": linear.count("short_conv_kernel_size"),
        },
        {**_mla(config, full), "output_gate": config.flag("mla_use_output_gate")},
    ]
    linear.refuse_unread()
    moe = {
        "routed_experts": config.count("num_experts"),
        "top_k": config.count("num_experts_per_token"),
        "expert_intermediate_size": config.count("moe_intermediate_size"),
        "latent_size": config.count("routed_expert_hidden_size", 0, least=0),
        **_shared(config, config.count("num_shared_experts", 0, least=0)),
    }
    return attention, _dense_then_moe(config, layers, moe)


def _glm4_moe(config: ConfigKeys) -> tuple[Groups, Groups]:
    """GLM-4.5 and 4.6: grouped-query attention with DeepSeek's feed-forward layers."""
    layers = config.count("num_hidden_layers")
    attention = _gqa(config, [0] * layers, bias=config.flag("attention_bias"))
    moe = {
        "routed_experts": config.count("n_routed_experts"),
        "top_k": config.count("num_experts_per_tok"),
        "expert_intermediate_size": config.count("moe_intermediate_size"),
        **_shared(config, config.count("n_shared_experts", 0, least=0)),
    }
    return attention, _dense_then_moe(config, layers, moe)


def _qwen3(config: ConfigKeys) -> tuple[Groups, Groups]:
    layers = config.count("num_hidden_layers")
    ffn = {
        "kind": "dense",
        "layers": layers,
        "intermediate_size": config.count("intermediate_size"),
    }
    return _qwen3_attention(config, layers), [ffn]


def _qwen3_moe(config: ConfigKeys) -> tuple[Groups, Groups]:
    layers = config.count("num_hidden_layers")
    config.only("shared_expert_intermediate_size", 0)
    moe = {
        "routed_experts": config.count("num_experts"),
        "top_k": config.count("num_experts_per_tok"),
        "expert_intermediate_size": config.count("moe_intermediate_size"),
    }
    dense_layers = set(config.items("mlp_only_layers"))
    step = config.count("decoder_sparse_step", 1)
    dense = sum(layer in dense_layers or (layer + 1) % step > 0 for layer in range(layers))
    return _qwen3_attention(config, layers), _dense_and_moe(config, dense, layers - dense, moe)


def _qwen3_attention(config: ConfigKeys, layers: int) -> Groups:
    config.only("qkv_bias", False)
    window = config.count("sliding_window", 0, least=0)
    whole = config.count("max_window_layers", layers, least=0)
    sliding = config.flag("use_sliding_window")
    windows = [window if sliding and layer >= whole else 0 for layer in range(layers)]
    bias = config.flag("attention_bias")
    return _gqa(config, _layer_types(config, window, windows), bias=bias)


def _gpt_oss(config: ConfigKeys) -> tuple[Groups, Groups]:
    layers = config.count("num_hidden_layers")
    window = config.count("sliding_window")
    windows = [window if layer % 2 == 0 else 0 for layer in range(layers)]
    bias = config.flag("attention_bias", True)
    attention = _gqa(config, _layer_types(config, window, windows), bias=bias)
    moe = {
        "routed_experts": config.count("num_local_experts"),
        "top_k": config.count("num_experts_per_tok"),
        "expert_intermediate_size": config.count("intermediate_size"),
        "bias": True,
    }
    config.only("experts_per_token", moe["top_k"])
    return attention, [{"kind": "moe", "layers": layers, **moe}]


def _llama(config: ConfigKeys) -> tuple[Groups, Groups]:
    layers = config.count("num_hidden_layers")
    attention = _gqa(config, [0] * layers, bias=config.flag("attention_bias"), plain_heads=True)
    ffn = {
        "kind": "dense",
        "layers": layers,
        "intermediate_size": config.count("intermediate_size"),
    }
    return attention, [ffn]


def _mixtral(config: ConfigKeys) -> tuple[Groups, Groups]:
    layers = config.count("num_hidden_layers")
    window = config.count("sliding_window", 0, least=0)
    attention = _gqa(config, [window] * layers, bias=False, plain_heads=True)
    return attention, [_local_experts(config, layers)]


def _minimax_m2(config: ConfigKeys) -> tuple[Groups, Groups]:
    layers = config.count("num_hidden_layers")
    if any(kind != 1 for kind in config.items("attn_type_list")):
        raise config.error("only full attention (1) can be costed", "attn_type_list")
    config.only("shared_intermediate_size", 0)
    return _gqa(config, [0] * layers, bias=False), [_local_experts(config, layers)]


def _local_experts(config: ConfigKeys, layers: int) -> dict[str, Any]:
    return {
        "kind": "moe",
        "layers": layers,
        "routed_experts": config.count("num_local_experts"),
        "top_k": config.count("num_experts_per_tok"),
        "expert_intermediate_size": config.count("intermediate_size"),
    }


def _mla(config: ConfigKeys, layers: int) -> dict[str, Any]:
    config.value("num_key_value_heads")  # one latent serves all heads, however many are named
    ranks = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    heads = config.count("num_attention_heads")
    return {"kind": "mla", "layers": layers, "heads": heads} | {
        key: config.count(key) for key in ranks
    }


def _gqa(
    config: ConfigKeys, windows: list[int], *, bias: bool, plain_heads: bool = False
) -> Groups:
    """One group for each window length, in the order of the layers; 0 is the whole context.

    `plain_heads` takes transformers' defaults where the keys are left out: as many KV heads as
    heads, and heads that fill the hidden size.
    """
    heads = config.count("num_attention_heads")
    filling = config.count("hidden_size") // heads if plain_heads else None
    group = {
        "kind": "gqa",
        "heads": heads,
        "kv_heads": config.count("num_key_value_heads", heads if plain_heads else None),
        "head_dim": config.count("head_dim", filling),
        "bias": bias,
    }
    return [
        {**group, "layers": layers, "window_tokens": window}
        for window, layers in Counter(windows).items()
    ]


def _layer_types(config: ConfigKeys, window: int, default: list[int]) -> list[int]:
    """The window of each layer as `layer_types` says, else the architecture's default."""
    types = config.items("layer_types")
    if not types:
        return default
    lengths = {"full_attention": 0, "sliding_attention": window}
    if len(types) != len(default) or any(name not in lengths for name in types):
        rule = f"must name {len(default)} layers as {' or '.join(lengths)}"
        raise config.error(rule, "layer_types")
    if window == 0 and "sliding_attention" in types:
        raise config.error("this key is required", "sliding_window")
    return [lengths[name] for name in types]


def _shared(config: ConfigKeys, experts: int) -> dict[str, Any]:
    """Shared experts, each as wide as a routed one."""
    size = config.count("moe_intermediate_size") if experts else 0
    return {"shared_experts": experts, "shared_intermediate_size": size}


def _dense_then_moe(config: ConfigKeys, layers: int, moe: dict[str, Any]) -> Groups:
    first, step = (
        config.count("first_k_dense_replace", 0, least=0),
        config.count("moe_layer_freq", 1),
    )
    dense = sum(layer < first or layer % step > 0 for layer in range(layers))
    return _dense_and_moe(config, dense, layers - dense, moe)


def _dense_and_moe(config: ConfigKeys, dense: int, moe: int, shape: dict[str, Any]) -> Groups:
    size = config.count("intermediate_size")
    groups = [
        {"kind": "dense", "layers": dense, "intermediate_size": size},
        {"kind": "moe", "layers": moe, **shape},
    ]
    return [group for group in groups if group["layers"]]


ARCHITECTURES: dict[str, Callable[[ConfigKeys], tuple[Groups, Groups]]] = {
    "DeepseekV3ForCausalLM": _deepseek_v3,
    "Glm4MoeForCausalLM": _glm4_moe,
    "GptOssForCausalLM": _gpt_oss,
    "KimiK25ForConditionalGeneration": _deepseek_v3,
    "KimiK3ForConditionalGeneration": _kimi_linear,
    "LlamaForCausalLM": _llama,
    "MiniMaxM2ForCausalLM": _minimax_m2,
    "MixtralForCausalLM": _mixtral,
    "Qwen3ForCausalLM": _qwen3,
    "Qwen3MoeForCausalLM": _qwen3_moe,
}
