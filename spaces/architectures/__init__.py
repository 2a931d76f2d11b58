"""What the keys of a `config.json` mean in each architecture: groups of layers.

Each reader takes the keys of the text model and gives shapes as they stand in a catalogue file. A
value whose cost no group can express is refused.
"""

from __future__ import annotations

from collections.abc import Callable

from spaces.architectures import grouped, hybrid, latent
from spaces.architectures.parts import Shapes
from spaces.config_keys import ConfigKeys

__all__ = ["ARCHITECTURES"]

ARCHITECTURES: dict[str, Callable[[ConfigKeys], Shapes]] = {
    "DeepseekV2ForCausalLM": latent.deepseek_v3,
    "DeepseekV32ForCausalLM": latent.deepseek_v32,
    "DeepseekV3ForCausalLM": latent.deepseek_v3,
    "DeepseekV4ForCausalLM": latent.deepseek_v4,
    "Glm4MoeForCausalLM": grouped.glm4_moe,
    "Glm4MoeLiteForCausalLM": latent.deepseek_v3,
    "GlmMoeDsaForCausalLM": latent.glm_moe_dsa,
    "GptOssForCausalLM": grouped.gpt_oss,
    "KimiK25ForConditionalGeneration": latent.deepseek_v3,
    "KimiK3ForConditionalGeneration": latent.kimi_linear,
    "KimiLinearForCausalLM": latent.kimi_linear,
    "Llama4ForCausalLM": grouped.llama4,
    "Llama4ForConditionalGeneration": grouped.llama4,
    "LlamaForCausalLM": grouped.llama,
    "MiMoForCausalLM": grouped.qwen2,
    "MiMoV2FlashForCausalLM": grouped.mimo_v2,
    "MiniMaxM2ForCausalLM": grouped.minimax_m2,
    "MiniMaxM3ForCausalLM": grouped.minimax_m3,
    "MiniMaxM3SparseForCausalLM": grouped.minimax_m3,
    "MiniMaxM3SparseForConditionalGeneration": grouped.minimax_m3,
    "MistralForCausalLM": grouped.mistral,
    "MixtralForCausalLM": grouped.mixtral,
    "NemotronHForCausalLM": hybrid.nemotron_h,
    "Qwen2ForCausalLM": grouped.qwen2,
    "Qwen3ForCausalLM": grouped.qwen3,
    "Qwen3MoeForCausalLM": grouped.qwen3_moe,
    "Qwen3NextForCausalLM": hybrid.qwen3_next,
    "Qwen3VLForConditionalGeneration": grouped.qwen3,
    "Qwen3VLMoeForConditionalGeneration": grouped.qwen3_moe,
    "Qwen3_5ForConditionalGeneration": hybrid.qwen3_5,
    "Qwen3_5MoeForConditionalGeneration": hybrid.qwen3_next,
    "Step3p7FlashForCausalLM": grouped.step3p7,
}
