"""Reading a Hugging Face `config.json`: the catalogue's shapes, and nothing passed over."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from spaces import catalog
from spaces.config_keys import ConfigKeys
from spaces.errors import InputError
from spaces.huggingface import model_from_config
from spaces.model import ModelSpec

Config = dict[str, Any]

FP8 = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}


def config(architecture: str, **keys: object) -> Config:
    """Keys that many configs have and that cost nothing, and those given."""
    return {
        "architectures": [architecture],
        "torch_dtype": "bfloat16",
        "bos_token_id": 1,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000,
        "rope_scaling": None,
        "sliding_window": None,
        "transformers_version": "4.57.0",
        "tie_word_embeddings": False,
        **keys,
    }


def latent(**keys: object) -> Config:
    return {
        "hidden_size": 7168,
        "num_hidden_layers": 61,
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "intermediate_size": 18432,
        "moe_intermediate_size": 2048,
        "moe_layer_freq": 1,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "num_nextn_predict_layers": 0,
        **keys,
    }


def deepseek() -> Config:
    return config(
        "DeepseekV3ForCausalLM",
        **latent(num_attention_heads=128, n_routed_experts=256, first_k_dense_replace=3),
        num_key_value_heads=128,
        vocab_size=129280,
        max_position_embeddings=163840,
        quantization_config=FP8,
    ) | {"num_nextn_predict_layers": 1}


def kimi_k2_text(context: int) -> Config:
    return config(
        "DeepseekV3ForCausalLM",
        **latent(num_attention_heads=64, n_routed_experts=384, first_k_dense_replace=1),
        vocab_size=163840,
        max_position_embeddings=context,
    )


def compressed(bits: int, kind: str, size: int, ignore: list[str]) -> Config:
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {"type": kind, "num_bits": bits, "group_size": size},
            }
        },
        "ignore": ignore,
    }


KEPT_BY_KIMI = [
    "lm_head",
    "re:.*self_attn.*",
    "re:.*shared_experts.*",
    "re:.*mlp\\.(gate|up|gate_up|down)_proj.*",
]


def kimi_k25() -> Config:
    text = kimi_k2_text(262144) | {"quantization_config": compressed(4, "int", 32, KEPT_BY_KIMI)}
    return {
        "architectures": ["KimiK25ForConditionalGeneration"],
        "dtype": "bfloat16",
        "tie_word_embeddings": False,
        "text_config": text,
        "vision_config": {"vt_hidden_size": 1152},
    }


def kimi_k3() -> Config:
    full = [*range(4, 93, 4), 93]
    text = config(
        "KimiLinearForCausalLM",
        **latent(num_attention_heads=96, first_k_dense_replace=1),
        vocab_size=163840,
        max_position_embeddings=1048576,
        linear_attn_config={
            "full_attn_layers": full,
            "kda_layers": [layer for layer in range(1, 94) if layer not in full],
            "head_dim": 128,
            "num_heads": 96,
            "short_conv_kernel_size": 4,
            "use_full_rank_gate": True,
        },
        mla_use_output_gate=True,
        num_experts=896,
        num_experts_per_token=16,
        num_shared_experts=2,
        routed_expert_hidden_size=3584,
        quantization_config=compressed(4, "float", 32, KEPT_BY_KIMI),
    ) | {"num_hidden_layers": 93, "intermediate_size": 33792, "moe_intermediate_size": 3072}
    for key in ("n_shared_experts", "num_experts_per_tok"):
        del text[key]
    return {
        "architectures": ["KimiK3ForConditionalGeneration"],
        "text_config": text,
        "vision_config": {"vt_hidden_size": 1024},
    }


def qwen3_moe(hidden: int, layers: int, heads: int, kv: int, experts: int, size: int) -> Config:
    return config(
        "Qwen3MoeForCausalLM",
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv,
        head_dim=128,
        attention_bias=False,
        use_sliding_window=False,
        max_window_layers=layers,
        decoder_sparse_step=1,
        mlp_only_layers=[],
        num_experts=experts,
        num_experts_per_tok=8,
        moe_intermediate_size=size,
        intermediate_size=3 * hidden,
        vocab_size=151936,
        max_position_embeddings=40960,
    )


def qwen3() -> Config:
    return config(
        "Qwen3ForCausalLM",
        hidden_size=5120,
        num_hidden_layers=64,
        num_attention_heads=64,
        num_key_value_heads=8,
        head_dim=128,
        intermediate_size=25600,
        vocab_size=151936,
        max_position_embeddings=40960,
    )


def gpt_oss(layers: int, experts: int) -> Config:
    return config(
        "GptOssForCausalLM",
        hidden_size=2880,
        num_hidden_layers=layers,
        num_attention_heads=64,
        num_key_value_heads=8,
        head_dim=64,
        attention_bias=True,
        intermediate_size=2880,
        num_local_experts=experts,
        num_experts_per_tok=4,
        experts_per_token=4,
        layer_types=["sliding_attention", "full_attention"] * (layers // 2),
        vocab_size=201088,
        max_position_embeddings=131072,
        quantization_config={
            "quant_method": "mxfp4",
            "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"],
        },
    ) | {"sliding_window": 128}


def llama(hidden: int, layers: int, heads: int, size: int) -> Config:
    return config(
        "LlamaForCausalLM",
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=8,
        intermediate_size=size,
        attention_bias=False,
        mlp_bias=False,
        vocab_size=128256,
        max_position_embeddings=131072,
    )


def mixtral() -> Config:
    return config(
        "MixtralForCausalLM",
        hidden_size=4096,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        intermediate_size=14336,
        num_local_experts=8,
        num_experts_per_tok=2,
        vocab_size=32000,
        max_position_embeddings=32768,
    )


def minimax(context: int) -> Config:
    return config(
        "MiniMaxM2ForCausalLM",
        hidden_size=3072,
        num_hidden_layers=62,
        num_attention_heads=48,
        num_key_value_heads=8,
        head_dim=128,
        attn_type_list=[1] * 62,
        use_qk_norm=True,
        qk_norm_type="per_layer",
        intermediate_size=1536,
        shared_intermediate_size=0,
        num_local_experts=256,
        num_experts_per_tok=8,
        use_mtp=True,
        num_mtp_modules=3,
        mtp_transformer_layers=1,
        vocab_size=200064,
        max_position_embeddings=context,
        quantization_config=FP8 | {"modules_to_not_convert": ["gate", "lm_head"]},
    )


def glm_flash() -> Config:
    return config(
        "Glm4MoeLiteForCausalLM",
        hidden_size=2048,
        num_hidden_layers=47,
        num_attention_heads=20,
        num_key_value_heads=20,
        q_lora_rank=768,
        kv_lora_rank=512,
        qk_nope_head_dim=192,
        qk_rope_head_dim=64,
        v_head_dim=256,
        attention_bias=False,
        first_k_dense_replace=1,
        intermediate_size=10240,
        moe_intermediate_size=1536,
        n_routed_experts=64,
        n_shared_experts=1,
        num_experts_per_tok=4,
        num_nextn_predict_layers=1,
        vocab_size=154880,
        max_position_embeddings=202752,
    )


def glm(hidden: int, layers: int, dense: int, size: int, experts: int, context: int) -> Config:
    return config(
        "Glm4MoeForCausalLM",
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=96,
        num_key_value_heads=8,
        head_dim=128,
        attention_bias=True,
        partial_rotary_factor=0.5,
        intermediate_size=size,
        moe_intermediate_size=1536 if hidden == 5120 else 1408,
        n_routed_experts=experts,
        n_shared_experts=1,
        num_experts_per_tok=8,
        first_k_dense_replace=dense,
        num_nextn_predict_layers=1,
        vocab_size=151552,
        max_position_embeddings=context,
    )


INDEX = {"index_n_heads": 64, "index_head_dim": 128, "index_topk": 2048}


def deepseek_v32() -> Config:
    return deepseek() | {
        "architectures": ["DeepseekV32ForCausalLM"],
        "quantization_config": FP8 | {"scale_fmt": "ue8m0"},
        **INDEX,
    }


def deepseek_v4(hidden: int, layers: int, ratios: list[int], **keys: int) -> Config:
    return config(
        "DeepseekV4ForCausalLM",
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_key_value_heads=1,
        head_dim=512,
        qk_rope_head_dim=64,
        o_lora_rank=1024,
        compress_ratios=[*ratios, 0],
        hc_mult=4,
        expert_dtype="fp4",
        n_shared_experts=1,
        num_experts_per_tok=6,
        num_hash_layers=3,
        num_nextn_predict_layers=1,
        vocab_size=129280,
        max_position_embeddings=1048576,
        quantization_config=FP8,
        **INDEX,
    ) | {"sliding_window": 128, **keys}


def deepseek_v4_pro() -> Config:
    return deepseek_v4(
        7168,
        61,
        [128, *[128, 4] * 30],
        num_attention_heads=128,
        q_lora_rank=1536,
        o_groups=16,
        n_routed_experts=384,
        moe_intermediate_size=3072,
        index_topk=1024,
    )


def deepseek_v4_flash() -> Config:
    return deepseek_v4(
        4096,
        43,
        [0, 0, *[4, 128] * 20, 4],
        num_attention_heads=64,
        q_lora_rank=1024,
        o_groups=8,
        n_routed_experts=256,
        moe_intermediate_size=2048,
        index_topk=512,
    )


def glm_dsa(context: int, **keys: object) -> Config:
    return config(
        "GlmMoeDsaForCausalLM",
        **latent(num_attention_heads=64, n_routed_experts=256, first_k_dense_replace=3),
        num_key_value_heads=64,
        qk_head_dim=256,
        vocab_size=154880,
        max_position_embeddings=context,
        **{**INDEX, "index_n_heads": 32},
        **keys,
    ) | {
        "hidden_size": 6144,
        "num_hidden_layers": 78,
        "q_lora_rank": 2048,
        "qk_nope_head_dim": 192,
        "v_head_dim": 256,
        "intermediate_size": 12288,
        "num_nextn_predict_layers": 1,
    }


def glm_reusing() -> Config:
    """Layers 0 to 2 and every fourth from 6 on have an indexer, the others reuse its selection."""
    full = {0, 1, 2, *range(6, 78, 4)}
    return glm_dsa(
        1048576,
        index_topk_freq=4,
        indexer_types=["full" if layer in full else "shared" for layer in range(78)],
        mlp_layer_types=["dense"] * 3 + ["sparse"] * 75,
    )


def minimax_m3() -> Config:
    sparse = [0] * 3 + [1] * 57
    return config(
        "MiniMaxM3ForCausalLM",
        hidden_size=6144,
        num_hidden_layers=60,
        num_attention_heads=64,
        num_key_value_heads=4,
        head_dim=128,
        attention_output_gate=False,
        intermediate_size=3072,
        dense_intermediate_size=12288,
        shared_intermediate_size=3072,
        moe_layer_freq=sparse,
        num_local_experts=128,
        num_experts_per_tok=4,
        n_shared_experts=1,
        sparse_attention_config={
            "use_sparse_attention": True,
            "sparse_attention_freq": sparse,
            "sparse_block_size": 128,
            "sparse_topk_blocks": 16,
            "sparse_init_block": 0,
            "sparse_index_dim": 128,
            "sparse_num_index_heads": 4,
        },
        vocab_size=200064,
        max_position_embeddings=1048576,
    )


def gated_delta(hidden: int, layers: int, values: int, heads: int, **keys: object) -> Config:
    return {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "attention_bias": False,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": values,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "full_attention_interval": 4,
        "tie_word_embeddings": False,
        "max_position_embeddings": 262144,
        **keys,
    }


def mixture(experts: int, picked: int, size: int) -> Config:
    return {
        "num_experts": experts,
        "num_experts_per_tok": picked,
        "moe_intermediate_size": size,
        "shared_expert_intermediate_size": size,
        "mlp_only_layers": [],
    }


def qwen3_next() -> Config:
    keys = gated_delta(2048, 48, 32, 16, vocab_size=151936, intermediate_size=5120)
    return config("Qwen3NextForCausalLM") | keys | mixture(512, 10, 512)


def qwen3_5(hidden: int, layers: int, values: int, heads: int, moe: Config) -> Config:
    kinds = ["linear_attention"] * 3 + ["full_attention"]
    text = gated_delta(
        hidden,
        layers,
        values,
        heads,
        vocab_size=248320,
        attn_output_gate=True,
        layer_types=kinds * (layers // 4),
        mamba_ssm_dtype="float32",
        mtp_num_hidden_layers=1,
    )
    return {
        "architectures": ["Qwen3_5MoeForConditionalGeneration"],
        "text_config": text | moe,
        "vision_config": {"depth": 27},
        "image_token_id": 1,
    }


def llama4(experts: int, step: int, context: int) -> Config:
    text = {
        "attention_bias": False,
        "attention_chunk_size": 8192,
        "hidden_size": 5120,
        "num_hidden_layers": 48,
        "num_attention_heads": 40,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "interleave_moe_layer_step": step,
        "intermediate_size": 8192,
        "intermediate_size_mlp": 16384,
        "num_local_experts": experts,
        "num_experts_per_tok": 1,
        "vocab_size": 202048,
        "max_position_embeddings": context,
        "use_qk_norm": True,
    }
    return {"architectures": ["Llama4ForConditionalGeneration"], "text_config": text}


def nemotron_h(**keys: object) -> Config:
    return config(
        "NemotronHForCausalLM",
        hidden_size=4096,
        num_hidden_layers=6,
        hybrid_override_pattern="MEM*E-",
        num_attention_heads=32,
        num_key_value_heads=2,
        head_dim=128,
        mamba_num_heads=128,
        mamba_head_dim=64,
        ssm_state_size=128,
        n_groups=8,
        conv_kernel=4,
        intermediate_size=2688,
        moe_intermediate_size=2688,
        moe_latent_size=1024,
        moe_shared_expert_intermediate_size=5376,
        n_routed_experts=512,
        n_shared_experts=1,
        num_experts_per_tok=22,
        mlp_hidden_act="relu2",
        vocab_size=131072,
        max_position_embeddings=262144,
        **keys,
    )


def mimo_v2() -> Config:
    return config(
        "MiMoV2FlashForCausalLM",
        hidden_size=4096,
        num_hidden_layers=48,
        hybrid_layer_pattern=[0, 1, 1, 1, 1, *[0, 1, 1, 1, 1, 1] * 7, 0],
        sliding_window_size=128,
        num_attention_heads=64,
        num_key_value_heads=4,
        head_dim=192,
        v_head_dim=128,
        swa_num_attention_heads=64,
        swa_num_key_value_heads=8,
        swa_head_dim=192,
        swa_v_head_dim=128,
        intermediate_size=16384,
        moe_layer_freq=[0] + [1] * 47,
        moe_intermediate_size=2048,
        n_routed_experts=256,
        num_experts_per_tok=8,
        vocab_size=152576,
        max_position_embeddings=262144,
    ) | {"sliding_window": 128}


CONFIGS: dict[str, Callable[[], Config]] = {
    "deepseek-r1": deepseek,
    "deepseek-r1-0528": deepseek,
    "deepseek-v3": deepseek,
    "deepseek-v3-0324": deepseek,
    "deepseek-v3.1": deepseek,
    "deepseek-v3.2": deepseek_v32,
    "deepseek-v3.2-exp": deepseek_v32,
    "deepseek-v4-flash": deepseek_v4_flash,
    "deepseek-v4-pro": deepseek_v4_pro,
    "glm-4.5": lambda: glm(5120, 92, 3, 12288, 160, 131072),
    "glm-4.5-air": lambda: glm(4096, 46, 1, 10944, 128, 131072),
    "glm-4.6": lambda: glm(5120, 92, 3, 12288, 160, 202752),
    "glm-4.7": lambda: glm(5120, 92, 3, 12288, 160, 202752),
    "glm-4.7-flash": glm_flash,
    "glm-5": lambda: glm_dsa(202752),
    "glm-5.1": lambda: glm_dsa(202752),
    "glm-5.2": glm_reusing,
    "glm-5.3": glm_reusing,
    "gpt-oss-120b": lambda: gpt_oss(36, 128),
    "gpt-oss-20b": lambda: gpt_oss(24, 32),
    "kimi-k2": lambda: kimi_k2_text(131072) | {"quantization_config": FP8},
    "kimi-k2-0905": lambda: kimi_k2_text(262144) | {"quantization_config": FP8},
    "kimi-k2.5": kimi_k25,
    "kimi-k2.6": kimi_k25,
    "kimi-k2.7-code": kimi_k25,
    "kimi-k3": kimi_k3,
    "llama-3.1-405b": lambda: llama(16384, 126, 128, 53248),
    "llama-3.1-70b": lambda: llama(8192, 80, 64, 28672),
    "llama-3.1-8b": lambda: llama(4096, 32, 32, 14336),
    "llama-3.3-70b": lambda: llama(8192, 80, 64, 28672),
    "llama-4-maverick": lambda: llama4(128, 2, 1048576),
    "llama-4-scout": lambda: llama4(16, 1, 10485760),
    "minimax-m2": lambda: minimax(196608),
    "minimax-m2.1": lambda: minimax(196608),
    "minimax-m2.5": lambda: minimax(196608),
    "minimax-m2.7": lambda: minimax(204800),
    "minimax-m3": minimax_m3,
    "mixtral-8x7b": mixtral,
    "qwen3-coder-next": qwen3_next,
    "qwen3-next-80b-a3b": qwen3_next,
    "qwen3.5-122b-a10b": lambda: qwen3_5(3072, 48, 64, 32, mixture(256, 8, 1024)),
    "qwen3.5-35b-a3b": lambda: qwen3_5(2048, 40, 32, 16, mixture(256, 8, 512)),
    "qwen3.5-397b-a17b": lambda: qwen3_5(4096, 60, 64, 32, mixture(512, 10, 1024)),
    "qwen3-235b-a22b": lambda: qwen3_moe(4096, 94, 64, 4, 128, 1536),
    "qwen3-30b-a3b": lambda: qwen3_moe(2048, 48, 32, 4, 128, 768),
    "qwen3-32b": qwen3,
    "qwen3-coder-480b-a35b": lambda: (
        qwen3_moe(6144, 62, 96, 8, 160, 2560) | {"max_position_embeddings": 262144}
    ),
}

SAME = {
    "hidden_size",
    "vocab_size",
    "max_context_tokens",
    "tied_embeddings",
    "residual_streams",
    "attention",
    "ffn",
    "native_weights",
}


@pytest.fixture
def read(tmp_path: Path) -> Callable[[Config], ModelSpec]:
    """Writes a config to a file and reads it as a model."""

    def write_and_read(data: Config) -> ModelSpec:
        path = tmp_path / "config.json"
        path.write_text(json.dumps(data))
        return model_from_config(path)

    return write_and_read


def refusal(read: Callable[[Config], ModelSpec], data: Config) -> str:
    with pytest.raises(InputError) as caught:
        read(data)
    return str(caught.value)


def test_every_model_of_the_catalogue_has_a_config_here() -> None:
    # Mistral Large 3 is published with a params.json instead; of Qwen3.8 no config was read,
    # of Step 3.5 what others read in it, and of Ernie 4.5 the defaults of its class.
    others = {"ernie-4.5-21b-a3b", "mistral-large-3", "qwen3.8-2.4t-a95b", "step-3.5-flash"}
    assert CONFIGS.keys() | others == set(catalog.model_names())


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_has_the_shapes_of_the_catalogue(
    name: str, read: Callable[[Config], ModelSpec]
) -> None:
    found, expected = read(CONFIGS[name]()), catalog.model(name)
    assert found.model_dump(include=SAME) == expected.model_dump(include=SAME)


# Numbers of which nothing follows where they stand, by the reason.
IDLE = {
    "heads that share one latent, which is stored once": {"num_key_value_heads"},
    "a dense size or a window where no layer is dense or windowed": {
        "intermediate_size",
        "intermediate_size_mlp",
        "max_window_layers",
    },
    "a rule whose outcome the config lists layer by layer": {
        "full_attention_interval",
        "index_topk_freq",
    },
    "of the vision tower, which is left out": {"depth", "vt_hidden_size"},
}


@pytest.mark.parametrize("name", CONFIGS)
def test_every_number_of_a_config_changes_the_model_or_is_refused(
    name: str, read: Callable[[Config], ModelSpec]
) -> None:
    ours, idle = read(CONFIGS[name]()), set()
    for path in numbers(CONFIGS[name]()):
        changed = CONFIGS[name]()
        holder = changed
        for part in path[:-1]:
            holder = holder[part]
        holder[path[-1]] += 1
        try:
            model = read(changed)
        except InputError:
            continue
        if model.model_dump(exclude={"source"}) == ours.model_dump(exclude={"source"}):
            idle.add(path[-1])
    assert idle <= set().union(*IDLE.values())
    kinds = {group.kind for group in (*ours.attention, *ours.ffn)}
    assert "intermediate_size" not in idle or "dense" not in kinds
    assert "num_key_value_heads" not in idle or "gqa" not in kinds


def numbers(data: Config, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The places of whole numbers whose keys are not known to be without cost."""
    for key in ConfigKeys(data, "config.json").costly():
        if isinstance(data[key], dict):
            yield from numbers(data[key], (*path, key))
        elif type(data[key]) is int:
            yield (*path, key)


def test_the_name_is_the_folders_or_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "My-Model"
    folder.mkdir()
    for path, name in [(folder / "config.json", "My-Model"), (folder / "other.json", "other")]:
        path.write_text(json.dumps(mixtral()))
        model = catalog.model(str(path))
        assert (model.name, model.source) == (name, str(path))
    assert catalog.model(str(folder)).name == "My-Model"
    monkeypatch.chdir(folder)
    assert catalog.model("config.json").name == "My-Model"


def test_what_is_left_out_is_noted(read: Callable[[Config], ModelSpec]) -> None:
    assert read(deepseek()).notes == (
        "1 multi-token-prediction layer(s) count only in plans that draft",
    )
    assert read(minimax(4096)).notes == (
        "3 multi-token-prediction layer(s) count only in plans that draft",
    )
    assert read(kimi_k3()).notes == ("the vision tower is left out",)
    assert read(llama(64, 2, 8, 128)).notes == ()


@pytest.mark.parametrize("named", [["FalconForCausalLM"], [], None])
def test_an_unknown_architecture_is_told_with_those_known(
    named: list[str] | None, read: Callable[[Config], ModelSpec]
) -> None:
    said = refusal(read, {**mixtral(), "architectures": named})
    assert "architectures: the architecture must be a known one" in said
    assert str(named or []) in said
    assert "Glm4MoeForCausalLM, Glm4MoeLiteForCausalLM, GlmMoeDsaForCausalLM" in said


def test_a_stride_of_indexers_is_refused_where_nobody_counts_it(
    read: Callable[[Config], ModelSpec],
) -> None:
    said = refusal(read, deepseek_v32() | {"index_topk_freq": 4})
    assert "config.json: index_topk_freq: it is not known whether" in said


def test_an_unknown_architecture_is_told_with_the_keys_nobody_understands(
    read: Callable[[Config], ModelSpec],
) -> None:
    text = {"hidden_size": 64, "altup_num_inputs": 4, "rms_norm_eps": 1e-6, "laurel_rank": None}
    said = refusal(read, {"architectures": ["Gemma3nForCausalLM"], "text_config": text})
    assert "not understood: text_config.altup_num_inputs, text_config.hidden_size" in said
    assert "rms_norm_eps" not in said
    assert "laurel_rank" not in said


@pytest.mark.parametrize("key", ["top_k_tokens", "index"])
def test_selection_of_tokens_is_never_passed_over(key: str) -> None:
    sparse = {"deepseek-v3.2", "deepseek-v3.2-exp", "glm-5", "glm-5.1", "glm-5.2", "glm-5.3"}
    sparse |= {"minimax-m3"}
    found = {
        name
        for name in catalog.model_names()
        if any(getattr(group, key, None) for group in catalog.model(name).attention)
    }
    assert found - {"deepseek-v4-flash", "deepseek-v4-pro"} == sparse


def test_nemotron_layers_are_one_part_each(read: Callable[[Config], ModelSpec]) -> None:
    model = read(nemotron_h())
    assert [(group.kind, group.layers) for group in model.attention] == [("mamba", 2), ("gqa", 1)]
    assert [(group.kind, group.layers) for group in model.ffn] == [("dense", 1), ("moe", 2)]
    assert model.layers == 6
    named = nemotron_h(layers_block_type=["mamba", "moe", "mamba", "attention", "moe", "mlp"])
    del named["hybrid_override_pattern"], named["num_hidden_layers"]
    assert read(named) == model


def test_published_sizes_of_nemotron_3_super(read: Callable[[Config], ModelSpec]) -> None:
    pattern = "MEMEMEM*EMEMEMEM*EMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEM*"
    pattern += "EMEMEMEME"
    model = read(nemotron_h() | {"hybrid_override_pattern": pattern, "num_hidden_layers": 88})
    assert model.total_parameters / 1e9 == pytest.approx(120, rel=0.02)
    assert model.active_parameters / 1e9 == pytest.approx(12, rel=0.02)


def test_published_sizes_of_mimo_v2_whose_values_are_narrower_than_keys(
    read: Callable[[Config], ModelSpec],
) -> None:
    model = read(mimo_v2())
    assert model.total_parameters / 1e9 == pytest.approx(309, rel=0.01)
    assert model.active_parameters / 1e9 == pytest.approx(15, rel=0.02)
    assert model.kv_bytes_per_token("bf16") == 9 * 4 * (192 + 128) * 2
    assert model.windowed_kv_bytes_per_token("bf16") == 39 * 8 * (192 + 128) * 2


def test_queries_of_kimi_linear_come_from_the_hidden_state(
    read: Callable[[Config], ModelSpec],
) -> None:
    data = kimi_k3()["text_config"] | {"q_lora_rank": None, "quantization_config": None}
    del data["linear_attn_config"]["use_full_rank_gate"]
    kda, full = read(data).attention
    assert full.model_dump(include={"kind", "q_lora_rank"}) == {"kind": "mla", "q_lora_rank": 0}
    assert not kda.model_dump()["full_rank_gate"]


def test_formats_listed_module_by_module(read: Callable[[Config], ModelSpec]) -> None:
    listed = {f"layers.{layer}.ffn.experts": {"quant_algo": "NVFP4"} for layer in range(61)}
    mixed: Config = FP8 | {"quant_algo": "MIXED_PRECISION", "quantized_layers": listed}
    weights = read(deepseek_v4_pro() | {"quantization_config": mixed}).native_weights
    assert (weights.routed_experts, weights.linear) == ("nvfp4", "fp8")
    del mixed["quant_method"]
    assert read(deepseek_v4_pro() | {"quantization_config": mixed}).native_weights.linear == "bf16"
    mixed["quantized_layers"]["lm_head"] = {"quant_algo": "MXFP8"}
    notes = read(deepseek_v4_pro() | {"quantization_config": mixed}).notes
    assert "the LM head is stored in fewer than 16 bits, and counted with 16" in notes
    assert "MXFP8 weights are counted as fp8, without their scales (3 %)" in notes


def test_kept_modules_of_alternating_layers_are_found_wherever_they_stand(
    read: Callable[[Config], ModelSpec],
) -> None:
    data = qwen3_5(4096, 60, 64, 32, mixture(512, 10, 1024))
    linear = [layer for layer in range(60) if layer % 4 != 3]
    ignore = [f"model.language_model.layers.{layer}.linear_attn*" for layer in linear]
    ignore += [f"model.language_model.layers.{layer}.self_attn*" for layer in range(3, 60, 4)]
    ignore += ["*.mlp.shared_expert.*"]
    model = read(data | {"quantization_config": {"quant_algo": "NVFP4", "ignore": ignore}})
    assert (model.native_weights.routed_experts, model.native_weights.linear) == ("nvfp4", "bf16")
    assert not any("several formats" in note for note in model.notes)


@pytest.mark.parametrize("name", ["deepseek-v3", "llama-3.1-8b", "qwen3-30b-a3b", "gpt-oss-20b"])
def test_every_key_of_a_shape_is_required(name: str, read: Callable[[Config], ModelSpec]) -> None:
    optional = {"num_key_value_heads", "n_shared_experts"}
    shapes = {
        key
        for key, value in CONFIGS[name]().items()
        if type(value) is int
        and (key.startswith(("num_", "n_")) or key.endswith(("size", "rank")))
    }
    assert len(shapes) >= 6
    for key in sorted(shapes - optional - {"num_nextn_predict_layers"}):
        data = CONFIGS[name]()
        del data[key]
        assert f"config.json: {key}: this key is required" in refusal(read, data)


def test_a_key_inside_the_text_config_is_told_with_its_path(
    read: Callable[[Config], ModelSpec],
) -> None:
    data = kimi_k3()
    del data["text_config"]["linear_attn_config"]["head_dim"]
    said = refusal(read, data)
    assert "text_config.linear_attn_config.head_dim: this key is required" in said


def test_a_key_whose_cost_is_unknown_is_refused_by_name(
    read: Callable[[Config], ModelSpec],
) -> None:
    said = refusal(read, {**mixtral(), "index_topk": 2048, "altup_num_inputs": 4})
    assert "config.json: altup_num_inputs, index_topk: it is not known whether" in said


def test_a_key_that_is_null_counts_as_left_out(read: Callable[[Config], ModelSpec]) -> None:
    assert read({**mixtral(), "index_topk": None}) == read(mixtral())


@pytest.mark.parametrize(
    ("name", "changes", "key"),
    [
        ("deepseek-v3", {"attention_bias": True}, "attention_bias"),
        ("llama-3.1-8b", {"mlp_bias": True}, "mlp_bias"),
        ("llama-3.1-8b", {"torch_dtype": "float32"}, "torch_dtype"),
        ("qwen3-30b-a3b", {"shared_expert_intermediate_size": 512}, "shared_expert_inter"),
        ("minimax-m2", {"attn_type_list": [0, 1]}, "attn_type_list"),
        ("gpt-oss-20b", {"experts_per_token": 8}, "experts_per_token"),
        ("gpt-oss-20b", {"layer_types": ["full_attention"]}, "layer_types"),
        ("gpt-oss-20b", {"layer_types": ["chunked_attention"] * 24}, "layer_types"),
        ("llama-3.1-8b", {"hidden_size": "4096"}, "hidden_size"),
        ("llama-3.1-8b", {"num_hidden_layers": 0}, "num_hidden_layers"),
        ("llama-3.1-8b", {"num_hidden_layers": True}, "num_hidden_layers"),
        ("llama-3.1-8b", {"tie_word_embeddings": "no"}, "tie_word_embeddings"),
        ("mixtral-8x7b", {"num_experts_per_tok": 9}, "ffn.0.top_k"),
        ("deepseek-v4-pro", {"compress_ratios": [4] * 60}, "compress_ratios"),
        ("deepseek-v4-pro", {"compress_ratios": [8] * 61}, "compress_ratios"),
        ("deepseek-v4-pro", {"expert_dtype": "fp6"}, "expert_dtype"),
        ("deepseek-v4-pro", {"num_key_value_heads": 8}, "num_key_value_heads"),
        ("glm-5", {"index_topk_freq": 4}, "index_topk_freq"),
        ("deepseek-v3.2", {"index_head_dim": "128"}, "index_head_dim"),
        ("glm-5", {"index_topk_pattern": "FS"}, "index_topk_pattern"),
        ("glm-5", {"qk_head_dim": 192}, "qk_head_dim"),
        ("glm-5.2", {"mlp_layer_types": ["sparse"] * 78}, "mlp_layer_types"),
        ("qwen3-next-80b-a3b", {"mamba_ssm_dtype": "bfloat16"}, "mamba_ssm_dtype"),
        ("qwen3-next-80b-a3b", {"layer_types": ["mamba"] * 48}, "layer_types"),
        ("mixtral-8x7b", {"num_key_value_heads": 5}, "attention.0.kv_heads"),
    ],
)
def test_a_value_that_cannot_be_costed_is_told_with_its_key(
    name: str, changes: Config, key: str, read: Callable[[Config], ModelSpec]
) -> None:
    said = refusal(read, CONFIGS[name]() | changes)
    assert f"config.json: {key}" in said
    assert "but got" in said


def test_layers_of_kimi_k3_must_add_up(read: Callable[[Config], ModelSpec]) -> None:
    data = kimi_k3()
    data["text_config"]["linear_attn_config"]["kda_layers"].pop()
    assert "must add up to 93" in refusal(read, data)


def test_sliding_windows_of_qwen_begin_after_the_whole_layers(
    read: Callable[[Config], ModelSpec],
) -> None:
    windowed = {"use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 48}
    groups = read(qwen3() | windowed).attention
    assert [(group.layers, group.window_tokens) for group in groups] == [(48, 0), (16, 4096)]
    unused = read(qwen3() | windowed | {"use_sliding_window": False}).attention
    assert [(group.layers, group.window_tokens) for group in unused] == [(64, 0)]


def test_every_layer_of_mixtral_has_the_window_it_names(
    read: Callable[[Config], ModelSpec],
) -> None:
    (group,) = read(mixtral() | {"sliding_window": 4096}).attention
    assert (group.layers, group.window_tokens) == (32, 4096)


def test_dense_layers_among_experts_are_counted(read: Callable[[Config], ModelSpec]) -> None:
    data = qwen3_moe(4096, 94, 64, 4, 128, 1536)
    some = read(data | {"mlp_only_layers": [0, 5]})
    assert [(group.kind, group.layers) for group in some.ffn] == [("dense", 2), ("moe", 92)]
    every_second = read(data | {"decoder_sparse_step": 2})
    assert [group.layers for group in every_second.ffn] == [47, 47]
    spread = read(deepseek() | {"moe_layer_freq": 2})
    assert [group.layers for group in spread.ffn] == [32, 29]  # layers 4, 6, ..., 60 are mixtures


def test_heads_of_llama_fill_the_hidden_size_unless_it_says_otherwise(
    read: Callable[[Config], ModelSpec],
) -> None:
    old = llama(4096, 32, 32, 11008)
    del old["num_key_value_heads"]
    (group,) = read(old).attention
    assert group.model_dump(include={"heads", "kv_heads", "head_dim"}) == {
        "heads": 32,
        "kv_heads": 32,
        "head_dim": 128,
    }
    (group,) = read(old | {"head_dim": 64}).attention
    assert group.parameters_per_layer(4096) == 4 * 4096 * 32 * 64


@pytest.mark.parametrize(
    ("quantization", "routed", "linear"),
    [
        (FP8, "fp8", "fp8"),
        ({"quant_method": "fp8", "activation_scheme": "static"}, "fp8", "fp8"),
        (compressed(4, "int", 32, KEPT_BY_KIMI), "int4", "bf16"),
        (compressed(4, "float", 32, KEPT_BY_KIMI), "mxfp4", "bf16"),
        (compressed(4, "float", 16, ["lm_head"]), "nvfp4", "nvfp4"),
        ({"quant_method": "mxfp4"}, "mxfp4", "bf16"),
        (
            {"quant_method": "modelopt", "quant_algo": "FP8", "exclude_modules": ["lm_head"]},
            "fp8",
            "fp8",
        ),
        (
            {
                "quant_algo": "NVFP4",
                "ignore": [
                    "language_model.model.layers.*.self_attn*",
                    "language_model.model.layers.*.mlp.shared_experts*",
                    *[f"language_model.model.layers.{layer}.mlp.down_proj" for layer in range(3)],
                ],
            },
            "nvfp4",
            "bf16",
        ),
    ],
)
def test_formats_of_quantized_checkpoints(
    quantization: Config, routed: str, linear: str, read: Callable[[Config], ModelSpec]
) -> None:
    model = read(deepseek() | {"quantization_config": quantization})
    weights = model.native_weights
    assert (weights.routed_experts, weights.linear, weights.embeddings) == (routed, linear, "bf16")
    assert not any("several formats" in note for note in model.notes)


def test_a_dense_model_has_one_format(read: Callable[[Config], ModelSpec]) -> None:
    weights = read(llama(64, 2, 8, 128) | {"quantization_config": FP8}).native_weights
    assert (weights.routed_experts, weights.linear) == ("fp8", "fp8")


def test_layers_in_several_formats_count_as_the_most_common_and_are_noted(
    read: Callable[[Config], ModelSpec],
) -> None:
    # Attention of Kimi K2 holds two thirds of the weights outside of routed experts.
    ignore = [f"model.layers.{layer}.self_attn*" for layer in range(61)]
    model = read(kimi_k2_text(4096) | {"quantization_config": compressed(4, "float", 16, ignore)})
    assert model.native_weights.linear == "bf16"
    assert any(
        "linear layers are stored in several formats (67% bf16, 33% nvfp4)" in note
        for note in model.notes
    )


def test_the_file_modelopt_leaves_beside_the_config_is_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(qwen3()))
    beside = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8"}}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(beside))
    model = model_from_config(tmp_path / "config.json")
    assert (model.native_weights.linear, model.static_fp8) == ("fp8", True)


def compressed_fp8(**inputs: object) -> Config:
    """The dictionary that llm-compressor writes, with these keys of `input_activations`."""
    quantization = compressed(8, "float", 0, ["lm_head"])
    group = quantization["config_groups"]["group_0"]
    group["weights"] |= {"group_size": None, "strategy": "tensor", "dynamic": False}
    group["input_activations"] = {"type": "float", "num_bits": 8, **inputs}
    return quantization


def modelopt_listed(*algorithms: str, **keys: object) -> Config:
    """ModelOpt's mixture in which the feed-forward part of each first layer has one of these."""
    listed = {f"model.layers.{at}.mlp": {"quant_algo": name} for at, name in enumerate(algorithms)}
    return {"quant_algo": "MIXED_PRECISION", "quantized_layers": listed, **keys}


@pytest.mark.parametrize(
    ("quantization", "static"),
    [
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, True),
        ({"quant_method": "fp8", "activation_scheme": "static"}, True),
        (compressed_fp8(strategy="tensor", dynamic=False), True),
        (modelopt_listed("FP8", "NVFP4"), True),
        ({"quant_method": "fp8", "activation_scheme": "dynamic"}, False),
        ({"quant_method": "fp8"}, False),
        (FP8 | {"activation_scheme": "dynamic"}, False),
        (compressed_fp8(strategy="tensor", dynamic=True), False),
        (compressed_fp8(strategy="token", dynamic=True), False),
        (compressed_fp8(strategy="group", group_size=128, dynamic=True), False),
        (modelopt_listed("MXFP8"), False),
        (modelopt_listed("FP8", quant_method="fp8", activation_scheme="dynamic"), False),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, False),
        (None, False),
    ],
)
def test_only_scales_a_tensor_that_the_checkpoint_states_are_static(
    quantization: Config | None, static: bool, read: Callable[[Config], ModelSpec]
) -> None:
    model = read(llama(64, 2, 8, 128) | {"quantization_config": quantization})
    assert model.static_fp8 is static


def test_a_mixture_of_scales_is_noted(read: Callable[[Config], ModelSpec]) -> None:
    model = read(llama(64, 2, 8, 128) | {"quantization_config": modelopt_listed("FP8", "MXFP8")})
    assert not model.static_fp8
    assert any("some fp8 inputs have one scale a tensor" in note for note in model.notes)


@pytest.mark.parametrize(
    ("quantization", "said"),
    [
        ({"quant_method": "awq", "bits": 4}, "quantization_config.quant_method: only fp8, mxfp4"),
        ({"quant_algo": "INT8"}, 'quantization_config.quant_algo: only "FP8" or'),
        ({"quant_algo": "MIXED_PRECISION"}, "quantization_config.quantized_layers: this key is"),
        (
            {"quant_algo": "MIXED_PRECISION", "quantized_layers": {"a": {"quant_algo": "W4A8"}}},
            "quantized_layers.a: only FP8, MXFP8",
        ),
        (FP8 | {"weight_block_size": [1, 32]}, "weight_block_size: only [128, 128]"),
        (FP8 | {"activation_scheme": "static"}, 'activation_scheme: only "dynamic" can be'),
        ({"quant_method": "fp8", "activation_scheme": "token"}, 'only "dynamic" or "static"'),
        (compressed_fp8(num_bits=16), "group_0.input_activations.num_bits: only 8 can be"),
        (FP8 | {"quantized_layers": {}}, "quantization_config.quantized_layers: it is not known"),
        (compressed(4, "int", 128, []), "config_groups.group_0.weights: type, bits and group"),
        ({"quant_algo": "NVFP4", "group_size": 32}, "quantization_config.group_size: only 16"),
        (compressed(4, "int", 32, ["re:(["]), "an ignored module's pattern is wrong"),
    ],
)
def test_a_quantization_that_cannot_be_costed_is_refused(
    quantization: Config, said: str, read: Callable[[Config], ModelSpec]
) -> None:
    assert said in refusal(read, deepseek() | {"quantization_config": quantization})


def test_two_groups_of_quantized_weights_are_refused(
    read: Callable[[Config], ModelSpec],
) -> None:
    quantization = compressed(4, "int", 32, [])
    quantization["config_groups"]["group_1"] = quantization["config_groups"]["group_0"]
    said = refusal(read, deepseek() | {"quantization_config": quantization})
    assert "only one group of weights can be costed" in said


def test_fp8_weights_that_are_multiplied_in_16_bits_are_refused(
    read: Callable[[Config], ModelSpec],
) -> None:
    quantization = compressed_fp8()
    quantization["config_groups"]["group_0"]["input_activations"] = None
    said = refusal(read, deepseek() | {"quantization_config": quantization})
    assert "config_groups.group_0.input_activations: fp8 weights need inputs in fp8" in said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "config.json:1: the text must be valid JSON"),
        ("[1]", "config.json: the file must hold a mapping, it holds list"),
        ('{"hidden_size": 1, "hidden_size": 2}', "config.json: hidden_size: a key may stand only"),
    ],
)
def test_a_file_that_is_no_config_is_told(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        model_from_config(path)
    assert said in str(caught.value)
