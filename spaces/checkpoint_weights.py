"""The number formats of a checkpoint's weights, from its `quantization_config`.

Understood are bf16 and fp16 without quantization; `fp8` (per tensor or 128x128 blocks); `mxfp4`;
`compressed-tensors` with one group of int4, mxfp4, nvfp4 or fp8; and ModelOpt's FP8 and NVFP4, in
`config.json` or in a `hf_quant_config.json` beside it. Embeddings and LM head keep 16 bits.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from spaces.config_keys import ConfigKeys, read_config
from spaces.errors import InputError
from spaces.model import (
    AttentionGroup,
    CompressedAttention,
    GdnAttention,
    MambaAttention,
    MlaAttention,
    ModelSpec,
    MoeFfn,
    WeightPrecision,
)
from spaces.precision import Dtype

Part = Literal["routed experts", "linear layers"]

_MODELOPT: dict[str, Dtype] = {"FP8": "fp8", "NVFP4": "nvfp4"}
# By type, bits and group size of the weights (the block formats of `spaces.precision`).
_COMPRESSED: dict[tuple[object, ...], Dtype] = {
    ("int", 4, 32): "int4",
    ("float", 4, 32): "mxfp4",
    ("float", 4, 16): "nvfp4",
    ("float", 8, None): "fp8",
}


@dataclass(frozen=True, slots=True)
class _Scheme:
    """A quantized format, the modules that keep 16 bits, and whether it is for experts alone."""

    dtype: Dtype
    kept: re.Pattern[str] | None
    experts_only: bool = False

    def kept_layers(self, module: _Module, layers: int) -> int:
        """How many of a model's layers hold this module in 16 bits.

        Where a module stands is not known, but a list of those that keep their bits names none
        that do not exist: it is looked for in every layer.
        """
        if self.experts_only and module.part == "linear layers":
            return module.layers
        if self.kept is None:
            return 0
        found = sum(
            any(self.kept.match(name) for name in module.names(layer)) for layer in range(layers)
        )
        return min(module.layers, found)


@dataclass(frozen=True, slots=True)
class _Module:
    """A representative module of `layers` equal layers, in the spellings in use."""

    spellings: tuple[str, ...]
    part: Part
    layers: int
    parameters: int

    def names(self, layer: int) -> Iterator[str]:
        for base in ("model.layers", "model.language_model.layers", "backbone.layers", "layers"):
            for spelling in self.spellings:
                yield f"{base}.{layer}.{spelling}"


def read_weights(
    config: ConfigKeys, text: ConfigKeys, shapes: ModelSpec
) -> tuple[WeightPrecision, tuple[str, ...]]:
    """The formats of a checkpoint with these shapes, and remarks on what was simplified.

    Where the modules of a part are stored in several formats, the part has the format of most of
    its weights, and a remark gives the shares.
    """
    for holder in (config, text):
        for key in ("dtype", "torch_dtype"):
            holder.only(key, "bfloat16", "float16")
    keys = _quantization(config, text)
    scheme = None if keys is None else _scheme(keys)
    weights: dict[Part, Counter[Dtype]] = {"routed experts": Counter(), "linear layers": Counter()}
    for module in _modules(shapes):
        kept = module.layers if scheme is None else scheme.kept_layers(module, shapes.layers)
        weights[module.part]["bf16"] += kept * module.parameters
        if scheme is not None:
            weights[module.part][scheme.dtype] += (module.layers - kept) * module.parameters
    weights = {part: +shares for part, shares in weights.items()}
    if text.value("expert_dtype"):
        text.only("expert_dtype", "fp4")  # 4 bits with an 8-bit exponent for each 32
        weights["routed experts"] = Counter({"mxfp4": shapes.routed_parameters})
    linear = weights["linear layers"].most_common(1)[0][0]
    routed = weights["routed experts"] or weights["linear layers"]
    precision = WeightPrecision(routed_experts=routed.most_common(1)[0][0], linear=linear)
    return precision, tuple(
        _remark(part, shares) for part, shares in weights.items() if len(shares) > 1
    )


def _remark(part: Part, shares: Counter[Dtype]) -> str:
    of = ", ".join(
        f"{count / shares.total():.0%} {dtype}" for dtype, count in shares.most_common()
    )
    return f"{part} are stored in several formats ({of}); the first is taken for all"


def _quantization(config: ConfigKeys, text: ConfigKeys) -> ConfigKeys | None:
    holders = [holder for holder in (config, text) if holder.value("quantization_config")]
    if len(holders) == 2 and config is not text:
        raise text.error(
            "may stand only once, here or outside of text_config", "quantization_config"
        )
    if holders:
        return holders[0].nested("quantization_config")
    beside = Path(config.where).parent / "hf_quant_config.json"
    return read_config(beside).nested("quantization") if beside.is_file() else None


def _scheme(keys: ConfigKeys) -> _Scheme:
    kept = _kept(keys)
    method, algorithm = keys.value("quant_method"), keys.value("quant_algo")
    if algorithm is not None:
        keys.only("quant_algo", *_MODELOPT)
        keys.only("group_size", 16)
        keys.value("config_groups")  # the algorithm in other words
        scheme = _Scheme(_MODELOPT[algorithm], kept)
    elif method == "fp8":
        keys.only("weight_block_size", [128, 128])
        scheme = _Scheme("fp8", kept)
    elif method == "mxfp4":
        scheme = _Scheme("mxfp4", kept, experts_only=True)
    elif method == "compressed-tensors":
        scheme = _Scheme(_compressed_dtype(keys.nested("config_groups")), kept)
    else:
        rule = "only fp8, mxfp4, compressed-tensors and modelopt can be costed"
        raise keys.error(rule, "quant_method")
    keys.refuse_unread()
    return scheme


def _compressed_dtype(groups: ConfigKeys) -> Dtype:
    if len(groups.data) != 1:
        raise groups.error("only one group of weights can be costed", ", ".join(groups.data))
    group = groups.nested(next(iter(groups.data)))
    group.only("targets", ["Linear"])
    weights = group.nested("weights")
    weights.only("symmetric", True)  # else each block has a zero point too
    found = tuple(weights.value(key) for key in ("type", "num_bits", "group_size"))
    if found not in _COMPRESSED:
        known = "; ".join(f"{kind} {bits} bits {size}" for kind, bits, size in _COMPRESSED)
        raise group.error(f"type, bits and group size must be one of {known}", "weights")
    return _COMPRESSED[found]


def _kept(keys: ConfigKeys) -> re.Pattern[str] | None:
    """A pattern of the modules that keep 16 bits, from all the keys such lists stand under."""
    names = ("ignore", "exclude_modules", "modules_to_not_convert", "ignored_layers")
    patterns = [_pattern(str(entry)) for name in names for entry in keys.items(name)]
    try:
        return re.compile("|".join(f"(?:{pattern})" for pattern in patterns)) if patterns else None
    except re.error as error:
        raise InputError(
            f"an ignored module's pattern is wrong ({error})", where=keys.where
        ) from None


def _pattern(entry: str) -> str:
    """`re:` starts a regular expression; else `*` is a wildcard, and path parts agree whole."""
    if entry.startswith("re:"):
        return entry.removeprefix("re:")
    words = re.escape(entry.removeprefix("language_model.")).replace(r"\*", ".*")
    return rf"(?:.*\.)?{words}(?:\..*)?$"


def _modules(shapes: ModelSpec) -> Iterator[_Module]:
    """Representative modules of all parts, with the weights they stand for in one layer."""
    hidden = shapes.hidden_size
    for group in shapes.attention:
        output, entry = _attention_spellings(group)
        width = _output_parameters(group, hidden)
        others = group.parameters_per_layer(hidden) - width
        yield _Module(output, "linear layers", group.layers, width)
        yield _Module(entry, "linear layers", group.layers, others)
    for ffn in shapes.ffn:
        if not isinstance(ffn, MoeFfn):
            count = ffn.parameters_per_layer(hidden)
            yield _Module(_DENSE, "linear layers", ffn.layers, count)
            continue
        shared = ffn.shared_expert_parameters(hidden)
        routed = ffn.routed_experts * ffn.parameters_per_expert(hidden)
        if shared:
            yield _Module(_SHARED, "linear layers", ffn.layers, shared)
        yield _Module(_ROUTED, "routed experts", ffn.layers, routed)


_DENSE = ("mlp.down_proj", "mixer.down_proj", "feed_forward.down_proj")
_SHARED = (
    "mlp.shared_experts.down_proj",
    "mlp.shared_expert.down_proj",
    "ffn.shared_experts.w2",
    "mixer.shared_experts.down_proj",
    "feed_forward.shared_expert.down_proj",
    "block_sparse_moe.shared_experts.down_proj",
)
_ROUTED = (
    "mlp.experts.0.down_proj",
    "block_sparse_moe.experts.0.w2",
    "ffn.experts.0.w2",
    "mixer.experts.0.down_proj",
    "feed_forward.experts.0.down_proj",
)


def _attention_spellings(group: AttentionGroup) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of the output projection, and of one of the others."""
    if isinstance(group, GdnAttention):
        return ("linear_attn.out_proj",), ("linear_attn.in_proj_qkv", "linear_attn.in_proj_qkvz")
    if isinstance(group, MambaAttention):
        return ("mixer.out_proj",), ("mixer.in_proj",)
    if isinstance(group, CompressedAttention):
        return ("self_attn.o_b_proj", "attn.wo_b"), ("self_attn.q_b_proj", "attn.wq_b")
    query = "q_b_proj" if isinstance(group, MlaAttention) and group.q_lora_rank else "q_proj"
    return ("self_attn.o_proj", "mixer.o_proj"), (f"self_attn.{query}", f"mixer.{query}")


def _output_parameters(group: AttentionGroup, hidden_size: int) -> int:
    if isinstance(group, CompressedAttention):
        return group.output_groups * group.output_lora_rank * hidden_size
    if isinstance(group, GdnAttention):
        return group.value_width * hidden_size
    if isinstance(group, MlaAttention):
        return group.heads * group.v_head_dim * hidden_size
    return group.heads * group.head_dim * hidden_size
