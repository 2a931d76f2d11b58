"""Architectures with latent attention, and DeepSeek-V4 that grew out of them."""

from __future__ import annotations

from collections import Counter

from spaces.architectures.parts import (
    Group,
    Shapes,
    dense_then_moe,
    dsa_index,
    layer_kinds,
    mla,
    routed_experts,
    shared,
    with_layers,
)
from spaces.config_keys import ConfigKeys


def deepseek_v3(config: ConfigKeys) -> Shapes:
    """DeepSeek-V3, and Kimi K2 which has its architecture: latent attention, shared experts."""
    layers = config.count("num_hidden_layers")
    config.only("attention_bias", False)
    return {
        "attention": [mla(config, layers)],
        "ffn": dense_then_moe(config, layers, routed_experts(config)),
    }


def deepseek_v32(config: ConfigKeys) -> Shapes:
    """DeepSeek-V3.2: an indexer in every layer selects the tokens to attend to."""
    shapes = deepseek_v3(config)
    (group,) = shapes["attention"]
    return shapes | {"attention": [group | _selection(config)]}


def glm_moe_dsa(config: ConfigKeys) -> Shapes:
    """GLM-5: DeepSeek-V3.2's architecture, in which layers may reuse an earlier selection."""
    shapes = deepseek_v3(config)
    (group,) = shapes["attention"]
    layers = group["layers"]
    layer_kinds(config, "layer_types", layers, "deepseek_sparse_attention")
    kinds = layer_kinds(config, "mlp_layer_types", layers, "dense", "sparse")
    if kinds and kinds.count("sparse") != shapes["ffn"][-1]["layers"]:
        raise config.error("must agree with first_k_dense_replace", "mlp_layer_types")
    indexers = layer_kinds(config, "indexer_types", layers, "full", "shared")
    if config.count("index_topk_freq", 1) > 1 and not indexers:
        raise config.error("must be 1 unless indexer_types is given", "index_topk_freq")
    config.value("index_skip_topk_offset")  # said again by indexer_types
    config.only("index_topk_pattern", None)
    computed = indexers.count("full") if indexers else layers
    reusing = group | {"layers": layers - computed, "top_k_tokens": config.count("index_topk")}
    selecting = group | {"layers": computed} | _selection(config)
    return shapes | {"attention": with_layers([selecting, reusing])}


def _selection(config: ConfigKeys) -> Group:
    return {"top_k_tokens": config.count("index_topk"), "index": dsa_index(config)}


def kimi_linear(config: ConfigKeys) -> Shapes:
    """Kimi Linear and Kimi K3: delta attention beside latent attention, K3 with latent experts."""
    layers = config.count("num_hidden_layers")
    linear = config.nested("linear_attn_config")
    kda, full = len(linear.items("kda_layers")), len(linear.items("full_attn_layers"))
    if kda + full != layers:
        raise linear.error(
            f"kda_layers and full_attn_layers must add up to {layers}", "kda_layers"
        )
    recurrent = {
        "kind": "kda",
        "layers": kda,
        "heads": linear.count("num_heads"),
        "head_dim": linear.count("head_dim"),
        "conv_kernel": linear.count("short_conv_kernel_size"),
        "full_rank_gate": linear.flag("use_full_rank_gate"),
    }
    linear.refuse_unread()
    latent = mla(config, full) | {"output_gate": config.flag("mla_use_output_gate")}
    moe = {
        "routed_experts": config.count("num_experts"),
        "top_k": config.count("num_experts_per_token"),
        "expert_intermediate_size": config.count("moe_intermediate_size"),
        "latent_size": config.count("routed_expert_hidden_size", 0, least=0),
        **shared(config, config.count("num_shared_experts", 0, least=0)),
    }
    ffn = dense_then_moe(config, layers, moe)
    return {"attention": with_layers([recurrent, latent]), "ffn": ffn}


def deepseek_v4(config: ConfigKeys) -> Shapes:
    """DeepSeek-V4: a window beside compressed entries, all or selected ones, by layer."""
    layers = config.count("num_hidden_layers")
    config.only("attention_bias", False)
    config.only("num_key_value_heads", 1)
    drafts = config.count("num_nextn_predict_layers", 0, least=0)
    ratios = config.items("compress_ratios")
    if len(ratios) not in (layers, layers + drafts) or any(r not in (0, 4, 128) for r in ratios):
        raise config.error(f"must give {layers} layers a ratio of 0, 4 or 128", "compress_ratios")
    group = {
        "kind": "compressed",
        "heads": config.count("num_attention_heads"),
        "head_dim": config.count("head_dim"),
        "rope_head_dim": config.count("qk_rope_head_dim"),
        "q_lora_rank": config.count("q_lora_rank"),
        "output_groups": config.count("o_groups"),
        "output_lora_rank": config.count("o_lora_rank"),
        "local_tokens": config.count("sliding_window"),
    }
    selected = {
        "overlap": True,
        "top_k_entries": config.count("index_topk"),
        "index": dsa_index(config),
    }
    count = Counter(ratios[:layers])
    attention = [
        group | {"layers": count[ratio], "ratio": ratio} | (selected if ratio == 4 else {})
        for ratio in (0, 4, 128)
    ]
    return {
        "attention": with_layers(attention),
        "ffn": [{"kind": "moe", "layers": layers, **routed_experts(config)}],
        "residual_streams": config.count("hc_mult", 1),
    }
