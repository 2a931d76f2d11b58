"""Layer groups that several architectures share, as read from the keys of a config.

Groups stand as they do in a catalogue file. A value whose cost no group can express is refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Any

from spaces.config_keys import ConfigKeys

Group = dict[str, Any]
Shapes = dict[str, Any]

# An index key in fp8 carries a scale in fp32.
INDEX_SCALE_BYTES = 4


def gqa(config: ConfigKeys, windows: Sequence[int], **other: object) -> list[Group]:
    """One group for each window length, in the order of the layers; 0 is the whole context."""
    heads = config.count("num_attention_heads")
    group = {
        "kind": "gqa",
        "heads": heads,
        "kv_heads": config.count("num_key_value_heads"),
        "head_dim": config.count("head_dim"),
        **other,
    }
    return [
        {**group, "layers": layers, "window_tokens": window}
        for window, layers in Counter(windows).items()
    ]


def plain_gqa(config: ConfigKeys, windows: Sequence[int], **other: object) -> list[Group]:
    """As `gqa`, with transformers' defaults where keys are left out.

    There are as many KV heads as heads, and heads fill the hidden size.
    """
    heads = config.count("num_attention_heads")
    group = {
        "kind": "gqa",
        "heads": heads,
        "kv_heads": config.count("num_key_value_heads", heads),
        "head_dim": config.count("head_dim", config.count("hidden_size") // heads),
        **other,
    }
    return [
        {**group, "layers": layers, "window_tokens": window}
        for window, layers in Counter(windows).items()
    ]


def mla(config: ConfigKeys, layers: int) -> Group:
    """A latent attention group; a `q_lora_rank` of null means queries from the hidden state."""
    config.value("num_key_value_heads")  # one latent serves all heads, however many are named
    config.value("head_dim")  # says again what the parts of a head say
    parts = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    group = {key: config.count(key) for key in parts}
    config.only("qk_head_dim", group["qk_nope_head_dim"] + group["qk_rope_head_dim"])
    direct = "q_lora_rank" in config.data and config.value("q_lora_rank") is None
    return group | {
        "kind": "mla",
        "layers": layers,
        "heads": config.count("num_attention_heads"),
        "q_lora_rank": 0 if direct else config.count("q_lora_rank"),
    }


def dsa_index(config: ConfigKeys) -> dict[str, int]:
    """The indexer of DeepSeek's sparse attention, keys in fp8."""
    size = config.count("index_head_dim")
    heads = config.count("index_n_heads")
    return {"heads": heads, "head_dim": size, "key_bytes": size + INDEX_SCALE_BYTES}


def windows_by_type(config: ConfigKeys, window: int, default: Sequence[int]) -> Sequence[int]:
    """The window of each layer as `layer_types` says, else the architecture's default."""
    lengths = {"full_attention": 0, "sliding_attention": window}
    types = layer_kinds(config, "layer_types", len(default), *lengths)
    if not types:
        return default
    if window == 0 and "sliding_attention" in types:
        raise config.error("this key is required", "sliding_window")
    return [lengths[name] for name in types]


def layer_kinds(config: ConfigKeys, key: str, layers: int, *kinds: Hashable) -> list[Any]:
    """A list that names each layer's kind among `kinds`; empty where it is left out."""
    found = config.items(key)
    if found and (len(found) != layers or any(kind not in kinds for kind in found)):
        said = " or ".join(str(kind) for kind in kinds)
        raise config.error(f"must name {layers} layers as {said}", key)
    return found


def dense(config: ConfigKeys, layers: int) -> Group:
    """Dense layers of the width `intermediate_size`."""
    size = config.count("intermediate_size")
    return {"kind": "dense", "layers": layers, "intermediate_size": size}


def local_experts(config: ConfigKeys, layers: int) -> Group:
    """Experts in the keys of Mixtral."""
    return {
        "kind": "moe",
        "layers": layers,
        "routed_experts": config.count("num_local_experts"),
        "top_k": config.count("num_experts_per_tok"),
        "expert_intermediate_size": config.count("intermediate_size"),
    }


def routed_experts(config: ConfigKeys) -> Group:
    """Experts in the keys of DeepSeek-V3, shared ones as wide as routed ones."""
    experts = config.count("n_routed_experts")
    config.only("num_experts", experts)
    return {
        "routed_experts": experts,
        "top_k": config.count("num_experts_per_tok"),
        "expert_intermediate_size": config.count("moe_intermediate_size"),
        **shared(config, config.count("n_shared_experts", 0, least=0)),
    }


def shared(config: ConfigKeys, experts: int) -> Group:
    """Shared experts, each as wide as a routed one."""
    size = config.count("moe_intermediate_size") if experts else 0
    return {"shared_experts": experts, "shared_intermediate_size": size}


def dense_then_moe(config: ConfigKeys, layers: int, moe: Group) -> list[Group]:
    """Dense layers first, then experts in every `moe_layer_freq`-th layer."""
    first = config.count("first_k_dense_replace", 0, least=0)
    step = config.count("moe_layer_freq", 1)
    plain = sum(layer < first or layer % step > 0 for layer in range(layers))
    return dense_and_moe(config, plain, layers - plain, moe)


def dense_and_moe(config: ConfigKeys, plain: int, mixed: int, shape: Group) -> list[Group]:
    """The groups that have layers, dense ones first."""
    groups = [dense(config, plain), {"kind": "moe", "layers": mixed, **shape}]
    return with_layers(groups)


def with_layers(groups: list[Group]) -> list[Group]:
    """Those of `groups` that have layers."""
    return [group for group in groups if group["layers"]]
