"""A `ModelSpec` from the `config.json` of a checkpoint on Hugging Face.

No key that may change the cost is passed over: a key that is neither read here nor listed as
harmless in `keys_without_cost.yaml` is refused by name.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from spaces.architectures import ARCHITECTURES
from spaces.checkpoint_weights import read_weights
from spaces.config_keys import ConfigKeys, read_config
from spaces.documents import validated
from spaces.errors import InputError
from spaces.model import ModelSpec


def model_from_config(path: Path) -> ModelSpec:
    """The model a Hugging Face `config.json` describes, weights in the checkpoint's own format.

    The name is that of the folder, or of the file where it is not called `config.json`. Vision
    towers are left out, which a note of the result says, and layers of multi-token prediction
    count only in plans that draft with them (they are taken to be like the last layer). Raises
    `InputError` for an unknown architecture, a missing key, or a key whose cost is unknown.
    """
    config = read_config(path)
    architecture = _architecture(config)
    text = config.nested("text_config") if "text_config" in config.data else config
    data = _everywhere(text) | ARCHITECTURES[architecture](text)
    data |= {
        "name": path.resolve().parent.name if path.name == "config.json" else path.stem,
        "source": str(path),
        "tied_embeddings": _tied(config, text),
        "native_weights": {"routed_experts": "bf16", "linear": "bf16"},
    }
    if _draft_layers(text):
        data["drafts"] = [{"name": "mtp", "method": "mtp", "source": str(path)}]
    left_out = _left_out(config, text)
    shapes = validated(ModelSpec, data, str(path))
    weights = read_weights(config, text, shapes)
    text.refuse_unread()
    config.refuse_unread()
    stored = {"native_weights": weights.precision, "static_fp8": weights.static_fp8}
    return shapes.model_copy(update=stored | {"notes": (*left_out, *weights.remarks)})


def _architecture(config: ConfigKeys) -> str:
    named = config.items("architectures")
    known = next((name for name in named if name in ARCHITECTURES), None)
    if known is None:
        raise InputError(
            "the architecture must be a known one",
            where=config.where,
            key="architectures",
            value=named,
            remedy=f"known are {', '.join(sorted(ARCHITECTURES))}; without one these keys are not "
            f"understood: {', '.join(_unknown(config))}",
        )
    return str(known)


def _unknown(config: ConfigKeys) -> list[str]:
    """The keys that an architecture must explain, those of the text model with its prefix."""
    text = config.nested("text_config") if config.value("text_config") else config
    return [f"{text.prefix}{key}" for key in text.costly()]


def _everywhere(text: ConfigKeys) -> dict[str, Any]:
    """What every architecture has, and what none of them may have."""
    for key in ("add_cross_attention", "is_encoder_decoder", "is_decoder", "mlp_bias"):
        text.only(key, False)
    text.only("cross_attention_hidden_size", None)
    text.only("pruned_heads", {})
    return {
        "hidden_size": text.count("hidden_size"),
        "vocab_size": text.count("vocab_size"),
        "max_context_tokens": text.count("max_position_embeddings"),
    }


def _tied(config: ConfigKeys, text: ConfigKeys) -> bool:
    tied = text.flag("tie_word_embeddings")
    config.only("tie_word_embeddings", tied)
    return tied


def _left_out(config: ConfigKeys, text: ConfigKeys) -> list[str]:
    """Notes on the parts of the checkpoint that serving text without drafts does not use."""
    notes = []
    if config.value("vision_config"):
        notes.append("the vision tower is left out")
    drafts = _draft_layers(text)
    if drafts:
        notes.append(f"{drafts} multi-token-prediction layer(s) count only in plans that draft")
    return notes


def _draft_layers(text: ConfigKeys) -> int:
    draft = text.count("num_nextn_predict_layers", 0, least=0)
    modules = text.count("num_mtp_modules", 0, least=0)
    drafts = draft + modules * text.count("mtp_transformer_layers", 1)
    drafts += text.count("mtp_num_hidden_layers", 0, least=0)
    return drafts if text.flag("use_mtp", True) else 0
