"""Representative modules of a checkpoint, in the spellings that lists of formats use."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from spaces.model import (
    AttentionGroup,
    CompressedAttention,
    GdnAttention,
    MambaAttention,
    MlaAttention,
    ModelSpec,
    MoeFfn,
)

Part = Literal["routed experts", "linear layers"]


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


@dataclass(frozen=True, slots=True)
class Module:
    """A representative module of `layers` equal layers, in the spellings in use.

    `first` is the first of them where groups follow one another.
    """

    spellings: tuple[str, ...]
    part: Part
    first: int
    layers: int
    parameters: int

    def layers_with(self, layers: int, listed: Callable[[str], bool]) -> int:
        """In how many of the layers that hold this module, of all `layers`, its name is listed.

        Where groups of layers alternate it is not known which layers those are. Then a list that
        names as many layers as there are stands for them all, since none names what is not there.
        """
        found = [layer for layer in range(layers) if any(map(listed, self._names(layer)))]
        if len(found) >= self.layers:
            return self.layers
        return sum(self.first <= layer < self.first + self.layers for layer in found)

    def _names(self, layer: int) -> Iterator[str]:
        for base in ("model.layers", "model.language_model.layers", "backbone.layers", "layers"):
            for spelling in self.spellings:
                yield f"{base}.{layer}.{spelling}"


def checkpoint_modules(shapes: ModelSpec) -> Iterator[Module]:
    """Representative modules of all parts, with the weights they stand for in one layer."""
    hidden, first = shapes.hidden_size, 0
    for group in shapes.attention:
        output, entry = _attention_spellings(group)
        width = _output_parameters(group, hidden)
        others = group.parameters_per_layer(hidden) - width
        yield Module(output, "linear layers", first, group.layers, width)
        yield Module(entry, "linear layers", first, group.layers, others)
        first += group.layers
    first = 0
    for ffn in shapes.ffn:
        if isinstance(ffn, MoeFfn):
            shared = ffn.shared_expert_parameters(hidden)
            routed = ffn.routed_experts * ffn.parameters_per_expert(hidden)
            yield Module(_SHARED, "linear layers", first, ffn.layers, shared)
            yield Module(_ROUTED, "routed experts", first, ffn.layers, routed)
        else:
            count = ffn.parameters_per_layer(hidden)
            yield Module(_DENSE, "linear layers", first, ffn.layers, count)
        first += ffn.layers


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
