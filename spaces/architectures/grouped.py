"""Architectures with grouped-query attention in every layer, on all or on part of the context."""

from __future__ import annotations

from spaces.architectures.parts import (
    Group,
    Shapes,
    dense,
    dense_and_moe,
    dense_then_moe,
    gqa,
    layer_kinds,
    local_experts,
    plain_gqa,
    routed_experts,
    windows_by_type,
    with_layers,
)
from spaces.config_keys import ConfigKeys


def llama(config: ConfigKeys) -> Shapes:
    """Llama 1 to 3."""
    layers = config.count("num_hidden_layers")
    bias = config.flag("attention_bias")
    return {
        "attention": plain_gqa(config, [0] * layers, bias=bias),
        "ffn": [dense(config, layers)],
    }


def mistral(config: ConfigKeys) -> Shapes:
    """Mistral: one window for all layers, or none."""
    layers = config.count("num_hidden_layers")
    window = config.count("sliding_window", 0, least=0)
    return {"attention": plain_gqa(config, [window] * layers), "ffn": [dense(config, layers)]}


def mixtral(config: ConfigKeys) -> Shapes:
    """Mixtral."""
    layers = config.count("num_hidden_layers")
    window = config.count("sliding_window", 0, least=0)
    return {
        "attention": plain_gqa(config, [window] * layers),
        "ffn": [local_experts(config, layers)],
    }


def llama4(config: ConfigKeys) -> Shapes:
    """Llama 4: three layers of four attend within chunks, counted as windows of that length."""
    layers = config.count("num_hidden_layers")
    chunk = config.count("attention_chunk_size")
    types = layer_kinds(config, "layer_types", layers, "chunked_attention", "full_attention")
    rotary = layer_kinds(config, "no_rope_layers", layers, 0, 1)
    every = config.count("no_rope_layer_interval", 4)
    local = [kind == "chunked_attention" for kind in types] or [bool(kind) for kind in rotary]
    local = local or [(layer + 1) % every > 0 for layer in range(layers)]
    bias = config.flag("attention_bias")
    attention = gqa(config, [chunk if one else 0 for one in local], bias=bias)
    step = config.count("interleave_moe_layer_step", 1)
    mixed = config.items("moe_layers") or range(step - 1, layers, step)
    size = config.count("intermediate_size")
    experts = local_experts(config, len(mixed))
    plain = {
        "kind": "dense",
        "layers": layers - len(mixed),
        "intermediate_size": config.count("intermediate_size_mlp"),
    }
    experts |= {"shared_experts": 1, "shared_intermediate_size": size}
    return {"attention": attention, "ffn": with_layers([plain, experts])}


def gpt_oss(config: ConfigKeys) -> Shapes:
    """gpt-oss: every second layer has a window, experts have biases."""
    layers = config.count("num_hidden_layers")
    window = config.count("sliding_window")
    alternating = [window if layer % 2 == 0 else 0 for layer in range(layers)]
    bias = config.flag("attention_bias", True)
    attention = gqa(config, windows_by_type(config, window, alternating), bias=bias)
    experts = local_experts(config, layers) | {"bias": True}
    config.only("experts_per_token", experts["top_k"])
    return {"attention": attention, "ffn": [experts]}


def glm4_moe(config: ConfigKeys) -> Shapes:
    """GLM-4.5 to 4.7: grouped-query attention with DeepSeek's feed-forward layers."""
    layers = config.count("num_hidden_layers")
    attention = gqa(config, [0] * layers, bias=config.flag("attention_bias"))
    ffn = dense_then_moe(config, layers, routed_experts(config))
    return {"attention": attention, "ffn": ffn}


def qwen2(config: ConfigKeys) -> Shapes:
    """Qwen 2 and 2.5, which have biases, and MiMo."""
    layers = config.count("num_hidden_layers")
    config.only("attention_bias", True)
    windows = _qwen_windows(config, layers)
    return {
        "attention": plain_gqa(config, windows, bias=True),
        "ffn": [dense(config, layers)],
    }


def qwen3(config: ConfigKeys) -> Shapes:
    """Qwen 3, dense."""
    layers = config.count("num_hidden_layers")
    return {"attention": _qwen3_attention(config, layers), "ffn": [dense(config, layers)]}


def qwen3_moe(config: ConfigKeys) -> Shapes:
    """Qwen 3 with experts."""
    layers = config.count("num_hidden_layers")
    config.only("shared_expert_intermediate_size", 0)
    moe = {
        "routed_experts": config.count("num_experts"),
        "top_k": config.count("num_experts_per_tok"),
        "expert_intermediate_size": config.count("moe_intermediate_size"),
    }
    plain = qwen_dense_layers(config, layers)
    return {
        "attention": _qwen3_attention(config, layers),
        "ffn": dense_and_moe(config, plain, layers - plain, moe),
    }


def qwen_dense_layers(config: ConfigKeys, layers: int) -> int:
    """Layers without experts among those of a Qwen mixture."""
    named = set(config.items("mlp_only_layers"))
    step = config.count("decoder_sparse_step", 1)
    return sum(layer in named or (layer + 1) % step > 0 for layer in range(layers))


def minimax_m2(config: ConfigKeys) -> Shapes:
    """MiniMax-M2: full attention with norms over all heads, experts in every layer."""
    layers = config.count("num_hidden_layers")
    config.only("use_qk_norm", True)
    config.only("qk_norm_type", "per_layer")
    if any(kind != 1 for kind in config.items("attn_type_list")):
        raise config.error("only full attention (1) can be costed", "attn_type_list")
    config.only("shared_intermediate_size", 0)
    attention = [group | {"norm_over_heads": True} for group in gqa(config, [0] * layers)]
    return {"attention": attention, "ffn": [local_experts(config, layers)]}


def minimax_m3(config: ConfigKeys) -> Shapes:
    """MiniMax-M3: an index picks blocks of the context in all but a few layers."""
    layers = config.count("num_hidden_layers")
    gate = config.flag("attention_output_gate")
    (group,) = gqa(config, [0] * layers, output_gate=gate)
    selection, sparse = _blocks(config, layers)
    attention = [group | {"layers": layers - sparse}, group | {"layers": sparse} | selection]
    mixed = sum(layer_kinds(config, "moe_layer_freq", layers, 0, 1)) or layers
    experts = local_experts(config, mixed)
    config.only("moe_intermediate_size", experts["expert_intermediate_size"])
    count = config.count("n_shared_experts", 0, least=0)
    if count:
        experts |= {
            "shared_experts": count,
            "shared_intermediate_size": config.count("shared_intermediate_size"),
        }
    plain = {
        "kind": "dense",
        "layers": layers - mixed,
        "intermediate_size": config.count("dense_intermediate_size"),
    }
    config.only("first_k_dense_replace", layers - mixed)
    return {"attention": with_layers(attention), "ffn": with_layers([plain, experts])}


def _blocks(config: ConfigKeys, layers: int) -> tuple[Group, int]:
    """What MiniMax-M3's index selects, keys in bf16, and in how many layers."""
    keys = config.nested("sparse_attention_config")
    sparse = keys.flag("use_sparse_attention", True)
    picked = sum(layer_kinds(keys, "sparse_attention_freq", layers, 0, 1)) or layers
    blocks = keys.count("sparse_topk_blocks") + keys.count("sparse_init_block", 0, least=0)
    size = keys.count("sparse_index_dim")
    selection = {
        "top_k_tokens": blocks * keys.count("sparse_block_size"),
        "index": {
            "heads": keys.count("sparse_num_index_heads"),
            "head_dim": size,
            "key_bytes": 2 * size,
        },
    }
    keys.refuse_unread()
    return selection, picked if sparse else 0


def mimo_v2(config: ConfigKeys) -> Shapes:
    """MiMo-V2: windowed layers with KV heads of their own, values narrower than keys."""
    layers = config.count("num_hidden_layers")
    window = config.count("sliding_window")
    for key in ("sliding_window_size", "attention_chunk_size"):
        config.only(key, window)
    config.only("attention_bias", False)
    windowed = sum(layer_kinds(config, "hybrid_layer_pattern", layers, 0, 1))
    attention = [
        {
            "kind": "gqa",
            "layers": count,
            "heads": config.count(f"{prefix}num_attention_heads"),
            "kv_heads": config.count(f"{prefix}num_key_value_heads"),
            "head_dim": config.count(f"{prefix}head_dim"),
            "value_head_dim": config.count(f"{prefix}v_head_dim"),
            "window_tokens": length,
        }
        for prefix, count, length in (("", layers - windowed, 0), ("swa_", windowed, window))
    ]
    mixed = sum(layer_kinds(config, "moe_layer_freq", layers, 0, 1)) or layers
    ffn = dense_and_moe(config, layers - mixed, mixed, routed_experts(config))
    return {"attention": with_layers(attention), "ffn": ffn}


def step3p7(config: ConfigKeys) -> Shapes:
    """Step 3.7 Flash: windows in most layers, one shared expert."""
    layers = config.count("num_hidden_layers")
    windows = windows_by_type(config, config.count("sliding_window"), [0] * layers)
    config.only("n_shared_experts", 1)
    moe = {
        "routed_experts": config.count("num_experts"),
        "top_k": config.count("num_experts_per_tok"),
        "expert_intermediate_size": config.count("moe_intermediate_size"),
        "shared_experts": 1,
        "shared_intermediate_size": config.count("share_expert_dim"),
    }
    return {"attention": gqa(config, windows), "ffn": dense_then_moe(config, layers, moe)}


def _qwen3_attention(config: ConfigKeys, layers: int) -> list[Group]:
    config.only("qkv_bias", False)
    windows = _qwen_windows(config, layers)
    return gqa(config, windows, bias=config.flag("attention_bias"))


def _qwen_windows(config: ConfigKeys, layers: int) -> list[int]:
    window = config.count("sliding_window", 0, least=0)
    whole = config.count("max_window_layers", layers, least=0)
    sliding = config.flag("use_sliding_window")
    windows = [window if sliding and layer >= whole else 0 for layer in range(layers)]
    return list(windows_by_type(config, window, windows))
