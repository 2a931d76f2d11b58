"""The number formats of a checkpoint's weights, from its `quantization_config`.

Understood are bf16 and fp16 without quantization; `fp8` (per tensor or 128x128 blocks); `mxfp4`;
`compressed-tensors` with one group of int4, mxfp4, nvfp4 or fp8; and ModelOpt's FP8, NVFP4 and
mixtures of them, in `config.json` or in a `hf_quant_config.json` beside it. Embeddings and LM head
keep 16 bits. Whether fp8 inputs have one scale a tensor that the checkpoint states is read too: so
ModelOpt's FP8 does always, `fp8` with `activation_scheme: static`, and `compressed-tensors` whose
`input_activations` are of the strategy `tensor` and not dynamic.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from spaces.checkpoint_modules import Module, Part, checkpoint_modules
from spaces.config_keys import ConfigKeys, read_config
from spaces.errors import InputError
from spaces.model import ModelSpec, WeightPrecision
from spaces.precision import Dtype

_MODELOPT: dict[str, Dtype] = {
    "FP8": "fp8",
    "MXFP8": "fp8",
    "NVFP4": "nvfp4",
    "W4A16_NVFP4": "nvfp4",
}
# By type, bits and group size of the weights (the block formats of `spaces.precision`).
_COMPRESSED: dict[tuple[object, ...], Dtype] = {
    ("int", 4, 32): "int4",
    ("float", 4, 32): "mxfp4",
    ("float", 4, 16): "nvfp4",
    ("float", 8, None): "fp8",
}
# When the scales of inputs to fp8 products are found: one a tensor with the checkpoint, or others
# while it is served.
_Scales = Literal["static", "dynamic"]
_MODELOPT_SCALES: dict[str, _Scales] = {"FP8": "static", "MXFP8": "dynamic"}


@dataclass(frozen=True, slots=True)
class CheckpointWeights:
    """How a checkpoint stores its weights, and remarks on what was simplified.

    With `static_fp8` it states one scale for every tensor of inputs of its fp8 products.
    """

    precision: WeightPrecision
    static_fp8: bool
    remarks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Scheme:
    """A quantized format, the modules that keep 16 bits, and whether it is for experts alone.

    `scales` are those of inputs to fp8 products.
    """

    dtype: Dtype
    kept: re.Pattern[str] | None
    experts_only: bool = False
    scales: frozenset[_Scales] = frozenset()

    def formats(self, module: Module, layers: int) -> Counter[Dtype]:
        """How many of the layers with this module hold it in which format."""
        kept = 0
        if self.experts_only and module.part == "linear layers":
            kept = module.layers
        elif self.kept is not None:
            pattern = self.kept
            kept = module.layers_with(layers, lambda name: pattern.match(name) is not None)
        return Counter({"bf16": kept, self.dtype: module.layers - kept})


@dataclass(frozen=True, slots=True)
class _Listed:
    """Formats by the names of modules or of what holds them, and the format of all others.

    `scales` are those of inputs to fp8 products.
    """

    by_name: dict[str, Dtype]
    others: Dtype
    scales: frozenset[_Scales] = frozenset()

    def formats(self, module: Module, layers: int) -> Counter[Dtype]:
        """How many of the layers with this module hold it in which format."""
        found: Counter[Dtype] = Counter()
        for dtype in sorted(set(self.by_name.values())):
            named = module.layers_with(layers, partial(self._is_in, dtype))
            found[dtype] = min(named, module.layers - found.total())
        found[self.others] += module.layers - found.total()
        return found

    def _is_in(self, dtype: Dtype, name: str) -> bool:
        parts = name.split(".")
        return any(
            self.by_name.get(".".join(parts[:end])) == dtype for end in range(1, len(parts) + 1)
        )


def read_weights(config: ConfigKeys, text: ConfigKeys, shapes: ModelSpec) -> CheckpointWeights:
    """The formats of a checkpoint with these shapes.

    Where the modules of a part are stored in several formats, the part has the format of most of
    its weights, and a remark gives the shares.
    """
    for holder in (config, text):
        for key in ("dtype", "torch_dtype"):
            holder.only(key, "bfloat16", "float16")
    keys = _quantization(config, text)
    scheme = _Listed({}, "bf16") if keys is None else _scheme(keys)
    weights: dict[Part, Counter[Dtype]] = {"routed experts": Counter(), "linear layers": Counter()}
    for module in checkpoint_modules(shapes):
        for dtype, layers in scheme.formats(module, shapes.layers).items():
            weights[module.part][dtype] += layers * module.parameters
    weights = {part: +shares for part, shares in weights.items()}
    if text.value("expert_dtype") and isinstance(scheme, _Scheme):
        text.only("expert_dtype", "fp4")  # 4 bits with an 8-bit exponent for each 32
        weights["routed experts"] = Counter({"mxfp4": shapes.routed_parameters})
    linear = weights["linear layers"].most_common(1)[0][0]
    routed = weights["routed experts"] or weights["linear layers"]
    precision = WeightPrecision(routed_experts=routed.most_common(1)[0][0], linear=linear)
    mixed = [_remark(part, shares) for part, shares in weights.items() if len(shares) > 1]
    static = scheme.scales == {"static"}
    return CheckpointWeights(precision, static, (*mixed, *_simplified(keys, scheme)))


def _simplified(keys: ConfigKeys | None, scheme: _Scheme | _Listed) -> Iterator[str]:
    """What the formats of `spaces.precision` cannot say of a list of modules."""
    if len(scheme.scales) > 1:
        yield "some fp8 inputs have one scale a tensor; all count as scaled while served"
    listed = keys.value("quantized_layers", {}) if keys else {}
    if "lm_head" in listed:
        yield "the LM head is stored in fewer than 16 bits, and counted with 16"
    if any(entry.get("quant_algo") == "MXFP8" for entry in listed.values()):
        yield "MXFP8 weights are counted as fp8, without their scales (3 %)"


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


def _scheme(keys: ConfigKeys) -> _Scheme | _Listed:
    kept = _kept(keys)
    method, algorithm = keys.value("quant_method"), keys.value("quant_algo")
    scheme: _Scheme | _Listed
    if algorithm == "MIXED_PRECISION":
        scheme = _listed(keys)
    elif algorithm is not None:
        keys.only("quant_algo", "FP8", "NVFP4", "MIXED_PRECISION")
        keys.only("group_size", 16)
        keys.value("config_groups")  # the algorithm in other words
        scheme = _Scheme(_MODELOPT[algorithm], kept, scales=_of_modelopt([algorithm]))
    elif method == "fp8":
        keys.only("weight_block_size", [128, 128])
        scheme = _Scheme("fp8", kept, scales=frozenset({_scales(keys)}))
    elif method == "mxfp4":
        scheme = _Scheme("mxfp4", kept, experts_only=True)
    elif method == "compressed-tensors":
        scheme = _compressed(keys.nested("config_groups"), kept)
    else:
        rule = "only fp8, mxfp4, compressed-tensors and modelopt can be costed"
        raise keys.error(rule, "quant_method")
    keys.refuse_unread()
    return scheme


def _listed(keys: ConfigKeys) -> _Listed:
    """ModelOpt's mixture: a format for each module named, DeepSeek's fp8 or none for others."""
    listed = keys.nested("quantized_layers")
    by_name: dict[str, Dtype] = {}
    algorithms = set()
    for name in listed.data:
        algorithm = listed.nested(name).value("quant_algo")
        if algorithm not in _MODELOPT:
            rule = f"only {', '.join(_MODELOPT)} can be costed"
            raise InputError(rule, where=keys.where, key=f"{listed.prefix}{name}", value=algorithm)
        by_name[name.removeprefix("language_model.")] = _MODELOPT[algorithm]
        algorithms.add(algorithm)
    for key in ("config_groups", "group_size", "moe_quant_algo"):
        keys.value(key)  # the list in other words
    keys.only("weight_block_size", [128, 128])
    scales = _of_modelopt(algorithms)
    if keys.value("quant_method") != "fp8":
        return _Listed(by_name, "bf16", scales)
    return _Listed(by_name, "fp8", scales | {_scales(keys)})


def _of_modelopt(algorithms: Iterable[str]) -> frozenset[_Scales]:
    return frozenset(_MODELOPT_SCALES[name] for name in algorithms if name in _MODELOPT_SCALES)


def _scales(keys: ConfigKeys) -> _Scales:
    """Those of the method `fp8`, which has none to state where its weights are in blocks."""
    in_blocks = keys.value("weight_block_size") is not None
    keys.only("activation_scheme", "dynamic", *(() if in_blocks else ("static",)))
    return "static" if keys.value("activation_scheme") == "static" else "dynamic"


def _compressed(groups: ConfigKeys, kept: re.Pattern[str] | None) -> _Scheme:
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
    dtype = _COMPRESSED[found]
    scales = frozenset({_input_scales(group)}) if dtype == "fp8" else frozenset()
    return _Scheme(dtype, kept, scales=scales)


def _input_scales(group: ConfigKeys) -> _Scales:
    """Those of a group of fp8 weights, whose inputs must be in fp8 too."""
    if group.value("input_activations") is None:
        rule = "fp8 weights need inputs in fp8; products in 16 bits with them cannot be costed"
        raise group.error(rule, "input_activations")
    inputs = group.nested("input_activations")
    for key, needed in (("type", "float"), ("num_bits", 8)):
        inputs.only(key, needed)
    one = inputs.value("strategy") == "tensor" and not inputs.flag("dynamic")
    return "static" if one else "dynamic"


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
