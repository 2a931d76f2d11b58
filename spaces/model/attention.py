"""Attention over a KV cache: grouped-query and latent, on all, the last or selected tokens.

All attention kinds answer the same questions: `parameters_per_layer`, `repeated_parameters` (those
that tensor parallelism does not divide), `kv_bytes_per_token` (what a token adds to one layer's
cache), `fixed_bytes` (what a request holds whatever its length), `window_tokens` (how much of the
context is kept, 0 for all of it) and `read_limit_tokens` (how much of it a query attends to at
most, 0 for all of it).
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveInt, model_validator

from spaces.documents import Document
from spaces.errors import InputError
from spaces.precision import BYTES_PER_KV_ELEMENT, KvDtype

Count = Annotated[int, Field(ge=0)]


class SparseIndex(Document):
    """The lightning indexer of sparse attention: it scores all tokens so that few are attended to.

    `heads` small query heads meet one shared key of `head_dim` per cached token, which takes
    `key_bytes` of the cache whatever the KV format (fp8 with a 32-bit scale in DeepSeek-V3.2,
    arXiv 2512.02556, section 2.1; bf16 in MiniMax-M3). Engines repeat the indexer on every
    tensor-parallel rank.
    """

    heads: PositiveInt
    head_dim: PositiveInt
    key_bytes: PositiveInt

    def parameters(self, hidden_size: int, query_width: int, key_projections: int = 1) -> int:
        """Weights of its query, key and head-weight projections.

        Queries come from a vector of `query_width`; a compressed key has several projections.
        """
        queries = query_width * self.heads * self.head_dim
        return queries + hidden_size * (key_projections * self.head_dim + self.heads)

    @property
    def flops_per_pair(self) -> int:
        """FLOPs of scoring one cached key for one query token, in one layer."""
        return 2 * self.heads * self.head_dim


class GqaAttention(Document):
    """Grouped-query attention (arXiv 2305.13245).

    With `window_tokens` a layer attends to, and keeps, the last tokens only. With `top_k_tokens`
    it keeps all and attends to those its `index` scores highest; without an index it reuses the
    selection of an earlier layer. An `output_gate` is one more projection as wide as the queries.
    `value_head_dim` is that of the keys unless said. With `norm_over_heads` queries and keys are
    normalised over all their heads, so that tensor-parallel ranks exchange sums of squares.
    """

    kind: Literal["gqa"] = "gqa"
    layers: PositiveInt
    heads: PositiveInt
    kv_heads: PositiveInt
    head_dim: PositiveInt
    value_head_dim: Count = 0
    window_tokens: Count = 0
    bias: bool = False
    output_gate: bool = False
    norm_over_heads: bool = False
    top_k_tokens: Count = 0
    index: SparseIndex | None = None

    @model_validator(mode="after")
    def _consistent(self) -> GqaAttention:
        if self.heads % self.kv_heads:
            raise InputError(
                "kv_heads must divide heads",
                key="kv_heads",
                value=f"{self.kv_heads} of {self.heads}",
            )
        if self.window_tokens and self.top_k_tokens:
            raise InputError(
                "a layer has a window or a selection, not both",
                key="top_k_tokens",
                value=self.top_k_tokens,
            )
        _index_selects(self.index, self.top_k_tokens)
        return self

    @property
    def value_width(self) -> int:
        """Elements of one head's value."""
        return self.value_head_dim or self.head_dim

    def kv_parameters(self, hidden_size: int) -> int:
        """Weights of the key and value projections."""
        return hidden_size * self.kv_elements_per_token

    def repeated_parameters(self, hidden_size: int) -> int:
        """Weights of the indexer."""
        return self.index.parameters(hidden_size, hidden_size) if self.index else 0

    def parameters_per_layer(self, hidden_size: int) -> int:
        """Weights of query, key, value and output projections, of gate, biases and indexer."""
        queries, values = self.heads * self.head_dim, self.heads * self.value_width
        gate = hidden_size * values if self.output_gate else 0
        biases = queries + self.kv_elements_per_token + hidden_size if self.bias else 0
        products = hidden_size * (queries + values) + self.kv_parameters(hidden_size)
        return products + gate + biases + self.repeated_parameters(hidden_size)

    @property
    def kv_elements_per_token(self) -> int:
        """Elements of a token's keys and values in one layer."""
        return self.kv_heads * (self.head_dim + self.value_width)

    def kv_bytes_per_token(self, kv: KvDtype) -> float:
        """Bytes one token adds to the cache of one layer: keys, values and index key."""
        return self.kv_elements_per_token * BYTES_PER_KV_ELEMENT[kv] + _key_bytes(self.index)

    def fixed_bytes(self, kv: KvDtype) -> float:
        """Bytes a request holds whatever its length: none."""
        return 0.0

    @property
    def flops_per_pair(self) -> int:
        """FLOPs of one query token attending to one cached token, in one layer (QK^T and PV)."""
        return 2 * self.heads * (self.head_dim + self.value_width)

    @property
    def read_limit_tokens(self) -> int:
        """The most tokens a query attends to; 0 for the whole context."""
        return self.window_tokens or self.top_k_tokens


class MlaAttention(Document):
    """Multi-head latent attention: one latent per token serves all heads (arXiv 2405.04434).

    Decode works on the latent itself (weights absorbed): each head scores `kv_lora_rank +
    qk_rope_head_dim` elements and sums `kv_lora_rank`. Prefill expands keys and values. A
    `q_lora_rank` of 0 stands for queries straight from the hidden state. With `top_k_tokens` a
    query attends to those tokens alone that the layer's `index`, or an earlier layer's, selects
    (DeepSeek sparse attention, arXiv 2512.02556); all are kept.
    """

    kind: Literal["mla"] = "mla"
    layers: PositiveInt
    heads: PositiveInt
    q_lora_rank: Count
    kv_lora_rank: PositiveInt
    qk_nope_head_dim: PositiveInt
    qk_rope_head_dim: PositiveInt
    v_head_dim: PositiveInt
    output_gate: bool = False
    window_tokens: Literal[0] = 0
    top_k_tokens: Count = 0
    index: SparseIndex | None = None

    @model_validator(mode="after")
    def _consistent(self) -> MlaAttention:
        _index_selects(self.index, self.top_k_tokens)
        return self

    def repeated_parameters(self, hidden_size: int) -> int:
        """Weights of the low-rank inputs, which every head reads, and of the indexer."""
        inputs = hidden_size * (self.q_lora_rank + self.kv_elements_per_token)
        query_width = self.q_lora_rank or hidden_size
        return inputs + (self.index.parameters(hidden_size, query_width) if self.index else 0)

    def parameters_per_layer(self, hidden_size: int) -> int:
        """Weights of query, KV and output projections, of gate and indexer."""
        query_dim = self.qk_nope_head_dim + self.qk_rope_head_dim
        query = (self.q_lora_rank or hidden_size) * self.heads * query_dim
        expand = self.kv_lora_rank * self.heads * (self.qk_nope_head_dim + self.v_head_dim)
        output = self.heads * self.v_head_dim * hidden_size
        split = query + expand + output * (2 if self.output_gate else 1)
        return self.repeated_parameters(hidden_size) + split

    @property
    def kv_elements_per_token(self) -> int:
        """Elements of one token's latent and rotary key in one layer."""
        return self.kv_lora_rank + self.qk_rope_head_dim

    def kv_bytes_per_token(self, kv: KvDtype) -> float:
        """Bytes one token adds to the cache of one layer: latent, rotary key and index key.

        The latent counts plain elements, without the scales that some fp8 layouts carry.
        """
        return self.kv_elements_per_token * BYTES_PER_KV_ELEMENT[kv] + _key_bytes(self.index)

    def fixed_bytes(self, kv: KvDtype) -> float:
        """Bytes a request holds whatever its length: none."""
        return 0.0

    @property
    def flops_per_pair(self) -> int:
        """FLOPs of a query-key pair in prefill, keys and values expanded."""
        return 2 * self.heads * (self.qk_nope_head_dim + self.qk_rope_head_dim + self.v_head_dim)

    @property
    def absorbed_flops_per_pair(self) -> int:
        """FLOPs of a query-key pair on the latent: in decode, and wherever tokens are selected."""
        return 2 * self.heads * (2 * self.kv_lora_rank + self.qk_rope_head_dim)

    @property
    def read_limit_tokens(self) -> int:
        """The most tokens a query attends to; 0 for the whole context."""
        return self.top_k_tokens


def _key_bytes(index: SparseIndex | None) -> int:
    return index.key_bytes if index else 0


def _index_selects(index: SparseIndex | None, top_k_tokens: int) -> None:
    if index and not top_k_tokens:
        raise InputError(
            "an index selects some tokens: top_k_tokens is needed beside it",
            key="top_k_tokens",
            value=top_k_tokens,
        )
