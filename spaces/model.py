"""The shape of a served model: what its layers hold, what a token adds to the KV cache.

Every formula counts one whole model on no particular chip; dividing it over chips is the work of
`spaces.sharding`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveInt, model_validator

from spaces.documents import Document
from spaces.errors import InputError
from spaces.precision import BYTES_PER_KV_ELEMENT, BYTES_PER_WEIGHT, Dtype, KvDtype, WeightsName

Count = Annotated[int, Field(ge=0)]


class GqaAttention(Document):
    """Grouped-query attention; with `window_tokens` a layer attends to the last tokens only."""

    kind: Literal["gqa"] = "gqa"
    layers: PositiveInt
    heads: PositiveInt
    kv_heads: PositiveInt
    head_dim: PositiveInt
    window_tokens: Count = 0
    bias: bool = False

    @model_validator(mode="after")
    def _heads_share_kv(self) -> GqaAttention:
        if self.heads % self.kv_heads:
            raise InputError(
                "kv_heads must divide heads",
                key="kv_heads",
                value=f"{self.kv_heads} of {self.heads}",
            )
        return self

    def parameters_per_layer(self, hidden_size: int) -> int:
        """Weights of the query, key, value and output projections."""
        width = self.heads * self.head_dim
        kv_width = 2 * self.kv_heads * self.head_dim
        biases = width + kv_width + hidden_size if self.bias else 0
        return hidden_size * (2 * width + kv_width) + biases

    @property
    def kv_elements_per_token(self) -> int:
        """Elements one token adds to the cache in one layer: a key and a value per KV head."""
        return 2 * self.kv_heads * self.head_dim

    @property
    def flops_per_pair(self) -> int:
        """FLOPs of one query token attending to one cached token, in one layer (QK^T and PV)."""
        return 4 * self.heads * self.head_dim

    @property
    def state_bytes(self) -> int:
        """Recurrent state per request and layer: none."""
        return 0


class MlaAttention(Document):
    """Multi-head latent attention: one latent per token serves all heads (arXiv 2405.04434).

    Decode works on the latent itself (weights absorbed): each head scores `kv_lora_rank +
    qk_rope_head_dim` elements and sums `kv_lora_rank`. Prefill expands keys and values.
    """

    kind: Literal["mla"] = "mla"
    layers: PositiveInt
    heads: PositiveInt
    q_lora_rank: PositiveInt
    kv_lora_rank: PositiveInt
    qk_nope_head_dim: PositiveInt
    qk_rope_head_dim: PositiveInt
    v_head_dim: PositiveInt
    output_gate: bool = False
    window_tokens: Literal[0] = 0

    def parameters_per_layer(self, hidden_size: int) -> int:
        """Weights of the low-rank query and KV projections, the output and the optional gate."""
        query_dim = self.qk_nope_head_dim + self.qk_rope_head_dim
        query = self.q_lora_rank * (hidden_size + self.heads * query_dim)
        latent = hidden_size * (self.kv_lora_rank + self.qk_rope_head_dim)
        expand = self.kv_lora_rank * self.heads * (self.qk_nope_head_dim + self.v_head_dim)
        output = self.heads * self.v_head_dim * hidden_size
        return query + latent + expand + output * (2 if self.output_gate else 1)

    @property
    def kv_elements_per_token(self) -> int:
        """Elements of one token's latent and rotary key in one layer."""
        return self.kv_lora_rank + self.qk_rope_head_dim

    @property
    def flops_per_pair(self) -> int:
        """FLOPs of a query-key pair in prefill, keys and values expanded."""
        return 2 * self.heads * (self.qk_nope_head_dim + self.qk_rope_head_dim + self.v_head_dim)

    @property
    def absorbed_flops_per_pair(self) -> int:
        """FLOPs of a query-key pair in decode, on the latent."""
        return 2 * self.heads * (2 * self.kv_lora_rank + self.qk_rope_head_dim)

    @property
    def state_bytes(self) -> int:
        """Recurrent state per request and layer: none."""
        return 0


class KdaAttention(Document):
    """Kimi delta attention: a linear recurrence with a fixed state per request (arXiv 2510.26692).

    The state of a head is a `head_dim` x `head_dim` matrix in fp32; a short convolution keeps its
    last `conv_kernel` - 1 inputs in bf16.
    """

    kind: Literal["kda"] = "kda"
    layers: PositiveInt
    heads: PositiveInt
    head_dim: PositiveInt
    conv_kernel: PositiveInt
    window_tokens: Literal[0] = 0

    def parameters_per_layer(self, hidden_size: int) -> int:
        """Weights of Q, K, V, output and gate, the low-rank decay, beta and convolutions."""
        width = self.heads * self.head_dim
        decay = self.head_dim * (hidden_size + width)
        return (
            5 * hidden_size * width
            + decay
            + hidden_size * self.heads
            + (3 * width * self.conv_kernel)
        )

    @property
    def kv_elements_per_token(self) -> int:
        """Elements a token adds to the cache: none, the state is fixed."""
        return 0

    @property
    def flops_per_pair(self) -> int:
        """FLOPs per query-key pair: none, the recurrence does not look back."""
        return 0

    @property
    def state_flops_per_token(self) -> int:
        """FLOPs of one token's state update and read in one layer (decay, delta, write, read)."""
        return 8 * self.heads * self.head_dim * self.head_dim

    @property
    def state_bytes(self) -> int:
        """Recurrent state (fp32) and convolution tail (bf16) per request and layer."""
        width = self.heads * self.head_dim
        return width * self.head_dim * 4 + 3 * width * (self.conv_kernel - 1) * 2


Attention = Annotated[GqaAttention | MlaAttention | KdaAttention, Field(discriminator="kind")]


class DenseFfn(Document):
    """A gated feed-forward layer: three matrices."""

    kind: Literal["dense"] = "dense"
    layers: PositiveInt
    intermediate_size: PositiveInt

    def parameters_per_layer(self, hidden_size: int) -> int:
        """Weights of the gate, up and down projections."""
        return 3 * hidden_size * self.intermediate_size


class MoeFfn(Document):
    """A mixture of experts: `top_k` of `routed_experts` per token, plus shared ones for all.

    With `latent_size` the routed experts work in a narrower space, entered and left by one
    projection each way per layer.
    """

    kind: Literal["moe"] = "moe"
    layers: PositiveInt
    routed_experts: PositiveInt
    top_k: PositiveInt
    expert_intermediate_size: PositiveInt
    shared_experts: Count = 0
    shared_intermediate_size: Count = 0
    latent_size: Count = 0
    bias: bool = False

    @model_validator(mode="after")
    def _experts_add_up(self) -> MoeFfn:
        if self.top_k > self.routed_experts:
            raise InputError(
                "a token cannot pick more experts than there are",
                key="top_k",
                value=f"{self.top_k} of {self.routed_experts}",
            )
        if bool(self.shared_experts) != bool(self.shared_intermediate_size):
            raise InputError(
                "shared_experts and shared_intermediate_size go together",
                key="shared_intermediate_size",
                value=self.shared_intermediate_size,
            )
        return self

    def expert_width(self, hidden_size: int) -> int:
        """Width in which routed experts read and write."""
        return self.latent_size or hidden_size

    def parameters_per_expert(self, hidden_size: int) -> int:
        """Weights of one routed expert (three matrices, and biases where the model has them)."""
        width = self.expert_width(hidden_size)
        biases = 2 * self.expert_intermediate_size + width if self.bias else 0
        return 3 * width * self.expert_intermediate_size + biases

    def shared_parameters_per_layer(self, hidden_size: int) -> int:
        """Weights every token uses: shared experts, router, latent projections."""
        shared = 3 * hidden_size * self.shared_intermediate_size * self.shared_experts
        return shared + hidden_size * self.routed_experts + 2 * hidden_size * self.latent_size

    def distinct_experts(self, tokens: float) -> float:
        """Expected number of experts that `tokens` tokens touch: E(1-(1-k/E)^B).

        Each token picks `top_k` different experts of `routed_experts`, uniformly and apart from
        the others.

        >>> round(MoeFfn(layers=1, routed_experts=256, top_k=8,
        ...              expert_intermediate_size=2048).distinct_experts(16), 1)
        102.0
        """
        spared = 1.0 - self.top_k / self.routed_experts
        return float(self.routed_experts * (1.0 - spared**tokens))


Ffn = Annotated[DenseFfn | MoeFfn, Field(discriminator="kind")]


class WeightPrecision(Document):
    """Number format of each part of the weights."""

    routed_experts: Dtype
    linear: Dtype
    embeddings: Dtype = "bf16"


class ModelSpec(Document):
    """A model as the catalogue or a Hugging Face `config.json` describes it."""

    name: str
    hugging_face_id: str = ""
    aliases: tuple[str, ...] = ()
    source: str
    checked: str = ""
    status: Literal["verified", "estimate"] = "verified"
    hidden_size: PositiveInt
    vocab_size: PositiveInt
    max_context_tokens: PositiveInt
    tied_embeddings: bool = False
    attention: tuple[Attention, ...] = Field(min_length=1)
    ffn: tuple[Ffn, ...] = Field(min_length=1)
    native_weights: WeightPrecision
    released_weights: tuple[WeightsName, ...] = ()
    published_total_parameters_b: float | None = None
    published_active_parameters_b: float | None = None
    published_source: str = ""
    notes: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _layers_agree(self) -> ModelSpec:
        feed_forward = sum(group.layers for group in self.ffn)
        if self.layers != feed_forward:
            raise InputError(
                "attention and feed-forward layers must be equally many",
                key="ffn",
                value=f"{self.layers} and {feed_forward}",
            )
        return self

    @property
    def layers(self) -> int:
        """Number of transformer layers."""
        return sum(group.layers for group in self.attention)

    @property
    def moe(self) -> MoeFfn | None:
        """The mixture-of-experts layers, or None for a dense model."""
        return next((group for group in self.ffn if isinstance(group, MoeFfn)), None)

    @property
    def window_tokens(self) -> int:
        """Length of the sliding window of the windowed layers; 0 where there are none."""
        return max(group.window_tokens for group in self.attention)

    @property
    def attention_heads(self) -> int:
        """Largest number of query heads that tensor parallelism may divide."""
        return min(group.heads for group in self.attention)

    def weights(self, name: WeightsName) -> WeightPrecision:
        """The formats of all parts when the deployment asks for `name`.

        `native` is the checkpoint's own. Another name converts the routed experts of a
        mixture-of-experts model, and the other linear layers too unless the format has four bits
        (published 4-bit MoE checkpoints leave attention and shared layers as they were); a dense
        model is converted whole. Embeddings and LM head keep their format.
        """
        native = self.native_weights
        if name == "native":
            return native
        four_bit = BYTES_PER_WEIGHT[name] < 1.0
        linear = native.linear if self.moe is not None and four_bit else name
        return WeightPrecision(routed_experts=name, linear=linear, embeddings=native.embeddings)

    @property
    def embedding_parameters(self) -> int:
        """Weights of the input embedding and, unless tied, the LM head."""
        return self.vocab_size * self.hidden_size * (1 if self.tied_embeddings else 2)

    @property
    def routed_parameters(self) -> int:
        """Weights of all routed experts of all layers."""
        return sum(
            group.layers * group.routed_experts * group.parameters_per_expert(self.hidden_size)
            for group in self.ffn
            if isinstance(group, MoeFfn)
        )

    @property
    def linear_parameters(self) -> int:
        """Weights of attention, dense and shared feed-forward layers and routers."""
        return sum(
            group.layers * group.parameters_per_layer(self.hidden_size) for group in self.attention
        ) + sum(group.layers * self._always_read(group) for group in self.ffn)

    def _always_read(self, group: DenseFfn | MoeFfn) -> int:
        if isinstance(group, MoeFfn):
            return group.shared_parameters_per_layer(self.hidden_size)
        return group.parameters_per_layer(self.hidden_size)

    @property
    def total_parameters(self) -> int:
        """All weights, norms apart."""
        return self.linear_parameters + self.routed_parameters + self.embedding_parameters

    @property
    def active_parameters(self) -> int:
        """Weights read for one token: all but the input embedding and the experts not picked."""
        routed = sum(
            group.layers * group.top_k * group.parameters_per_expert(self.hidden_size)
            for group in self.ffn
            if isinstance(group, MoeFfn)
        )
        return self.linear_parameters + routed + self.vocab_size * self.hidden_size

    def kv_bytes_per_token(self, dtype: KvDtype) -> float:
        """Bytes one token adds to the KV cache of the whole model, windowed layers left out."""
        return BYTES_PER_KV_ELEMENT[dtype] * sum(
            group.layers * group.kv_elements_per_token
            for group in self.attention
            if group.window_tokens == 0
        )

    def windowed_kv_bytes_per_token(self, dtype: KvDtype) -> float:
        """Bytes one token adds to the windowed layers, up to the window's length."""
        return BYTES_PER_KV_ELEMENT[dtype] * sum(
            group.layers * group.kv_elements_per_token
            for group in self.attention
            if group.window_tokens > 0
        )

    @property
    def state_bytes_per_request(self) -> int:
        """Bytes of fixed recurrent state of one request, all linear-attention layers."""
        return sum(group.layers * group.state_bytes for group in self.attention)
