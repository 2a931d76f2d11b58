"""Attention to compressed entries of the context and a short window (DeepSeek-V4)."""

from __future__ import annotations

from typing import Literal

from pydantic import PositiveInt, model_validator

from spaces.documents import Document
from spaces.errors import InputError
from spaces.model.attention import Count, SparseIndex
from spaces.precision import KvDtype

# An fp8 entry's scales, padded, beside its fp8 elements and its rotary ones in bf16 (the 584-byte
# entry of SGLang 0.5.23).
_SCALE_BYTES = 8


class CompressedAttention(Document):
    """Multi-query attention over compressed entries and the last `local_tokens` tokens.

    One `head_dim` wide entry is key and value of all heads. `ratio` tokens are pooled into each
    compressed entry; 0 leaves the window alone. With `top_k_entries` a query attends to the
    entries that `index` scores highest (compressed sparse attention), else to all of them
    (heavily compressed attention). `overlap` pools over two neighbouring groups, which doubles the
    compressor's projections. Queries are low-rank, the output is projected in `output_groups`
    groups of heads to `output_lora_rank` each. Shapes are those of transformers 5.24.0,
    deepseek_v4.
    """

    kind: Literal["compressed"] = "compressed"
    layers: PositiveInt
    heads: PositiveInt
    head_dim: PositiveInt
    rope_head_dim: PositiveInt
    q_lora_rank: PositiveInt
    output_groups: PositiveInt
    output_lora_rank: PositiveInt
    local_tokens: PositiveInt
    ratio: Count = 0
    overlap: bool = False
    top_k_entries: Count = 0
    index: SparseIndex | None = None
    window_tokens: Literal[0] = 0

    @model_validator(mode="after")
    def _consistent(self) -> CompressedAttention:
        if bool(self.top_k_entries) != bool(self.index) or (self.index and not self.ratio):
            raise InputError(
                "ratio, top_k_entries and index go together where entries are selected",
                key="top_k_entries",
                value=self.top_k_entries,
            )
        if self.heads % self.output_groups:
            raise InputError(
                "output_groups must divide heads",
                key="output_groups",
                value=f"{self.output_groups} of {self.heads}",
            )
        return self

    @property
    def pooled_projections(self) -> int:
        """Entry-wide projections of the compressor: values and their weights."""
        return (4 if self.overlap else 2) if self.ratio else 0

    def repeated_parameters(self, hidden_size: int) -> int:
        """Weights of the low-rank query input, the entry, the compressor and the indexer."""
        inputs = self.q_lora_rank + self.head_dim * (1 + self.pooled_projections)
        parameters = hidden_size * inputs
        if self.index:
            parameters += self.index.parameters(
                hidden_size, self.q_lora_rank, self.pooled_projections
            )
        return parameters

    def parameters_per_layer(self, hidden_size: int) -> int:
        """Weights of query, entry and grouped output projections, compressor and indexer."""
        width = self.heads * self.head_dim
        output = self.output_lora_rank * (width + self.output_groups * hidden_size)
        return self.repeated_parameters(hidden_size) + self.q_lora_rank * width + output

    def entry_bytes(self, kv: KvDtype) -> int:
        """Bytes of one entry; in fp8 its rotary part stays in bf16, and scales are added."""
        if kv == "bf16":
            return 2 * self.head_dim
        return self.head_dim + self.rope_head_dim + _SCALE_BYTES

    def kv_bytes_per_token(self, kv: KvDtype) -> float:
        """Bytes one token adds to the cache of one layer: its share of an entry and its key."""
        if not self.ratio:
            return 0.0
        key_bytes = self.index.key_bytes if self.index else 0
        return (self.entry_bytes(kv) + key_bytes) / self.ratio

    def fixed_bytes(self, kv: KvDtype) -> float:
        """Bytes of the window, which is counted as full for every request."""
        return float(self.local_tokens * self.entry_bytes(kv))

    @property
    def flops_per_pair(self) -> int:
        """FLOPs of one query token attending to one entry (QK^T and PV), in one layer."""
        return 4 * self.heads * self.head_dim

    @property
    def read_limit_tokens(self) -> int:
        """The context, in tokens, whose entries fill the selection; 0 where all are read."""
        return self.top_k_entries * self.ratio
