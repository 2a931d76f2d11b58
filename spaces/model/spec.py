"""A whole model: groups of equal layers, embeddings, formats, and what they add up to."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveInt, model_validator

from spaces.documents import Document
from spaces.errors import InputError
from spaces.model.drafts import DraftHead
from spaces.model.feed_forward import DenseFfn, MoeFfn
from spaces.model.groups import Attention, Ffn
from spaces.precision import BYTES_PER_WEIGHT, Dtype, KvDtype, WeightsName


class WeightPrecision(Document):
    """Number format of each part of the weights."""

    routed_experts: Dtype
    linear: Dtype
    embeddings: Dtype = "bf16"


class ModelSpec(Document):
    """A model as the catalogue or a Hugging Face `config.json` describes it.

    A layer has an attention and a feed-forward part; with `single_part_layers` it has one of the
    two (Nemotron-H). `residual_streams` above 1 are hyper-connections (arXiv 2409.19606), which
    mix as many copies of the residual stream before and after each part. `drafts` are what can
    draft tokens for it; nothing else here counts them. With `static_fp8` its fp8 checkpoint states
    one scale for every tensor of inputs, so kernels can hand them on in fp8.
    """

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
    residual_streams: PositiveInt = 1
    single_part_layers: bool = False
    attention: tuple[Attention, ...] = Field(min_length=1)
    ffn: tuple[Ffn, ...] = Field(min_length=1)
    native_weights: WeightPrecision
    released_weights: tuple[WeightsName, ...] = ()
    static_fp8: bool = False
    drafts: tuple[DraftHead, ...] = ()
    published_total_parameters_b: float | None = None
    published_active_parameters_b: float | None = None
    published_source: str = ""
    notes: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _consistent(self) -> ModelSpec:
        attention, feed_forward = self._attention_layers, self._feed_forward_layers
        if attention != feed_forward and not self.single_part_layers:
            raise InputError(
                "attention and feed-forward layers must be equally many",
                key="ffn",
                value=f"{attention} and {feed_forward}",
            )
        limits = {group.read_limit_tokens for group in self.attention} - {0}
        if len(limits) > 1:
            raise InputError(
                "layers that attend to a part of the context must agree on its length",
                key="attention",
                value=" and ".join(str(limit) for limit in sorted(limits)),
            )
        if not any(group.kv_bytes_per_token("bf16") for group in self.attention):
            raise InputError("some layer must keep a KV cache that grows", key="attention")
        return self

    @property
    def layers(self) -> int:
        """Number of transformer layers."""
        apart = self._feed_forward_layers if self.single_part_layers else 0
        return self._attention_layers + apart

    @property
    def parts(self) -> int:
        """Attention and feed-forward parts of all layers."""
        return self._attention_layers + self._feed_forward_layers

    @property
    def _attention_layers(self) -> int:
        return sum(group.layers for group in self.attention)

    @property
    def _feed_forward_layers(self) -> int:
        return sum(group.layers for group in self.ffn)

    @property
    def moe(self) -> MoeFfn | None:
        """The mixture-of-experts layers, or None for a dense model."""
        return next((group for group in self.ffn if isinstance(group, MoeFfn)), None)

    @property
    def window_tokens(self) -> int:
        """Tokens of context the windowed layers keep; 0 where there are none."""
        return max(group.window_tokens for group in self.attention)

    @property
    def read_limit_tokens(self) -> int:
        """The most tokens a query of a windowed or sparse layer attends to; 0 without such."""
        return max(group.read_limit_tokens for group in self.attention)

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
        """Weights of attention, dense and shared feed-forward layers, routers, stream mixers."""
        attention = sum(
            group.layers * group.parameters_per_layer(self.hidden_size) for group in self.attention
        )
        feed_forward = sum(group.layers * self._always_read(group) for group in self.ffn)
        return attention + feed_forward + self.parts * self.mixer_parameters

    @property
    def mixer_parameters(self) -> int:
        """Weights that mix the residual streams around one part of a layer; 0 with one stream.

        From all streams together come a weight to read each of them, one to write each, and a
        square matrix that mixes them.
        """
        streams = self.residual_streams
        outputs = 2 * streams + streams**2 if streams > 1 else 0
        return streams * self.hidden_size * outputs

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
        return sum(
            group.layers * group.kv_bytes_per_token(dtype)
            for group in self.attention
            if group.window_tokens == 0
        )

    def windowed_kv_bytes_per_token(self, dtype: KvDtype) -> float:
        """Bytes one token adds to the windowed layers, up to the window's length."""
        return sum(
            group.layers * group.kv_bytes_per_token(dtype)
            for group in self.attention
            if group.window_tokens > 0
        )

    def fixed_bytes_per_request(self, dtype: KvDtype) -> float:
        """Bytes of one request that do not grow: recurrent states and the windows of V4."""
        return sum(group.layers * group.fixed_bytes(dtype) for group in self.attention)
