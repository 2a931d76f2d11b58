"""Linear attention: layers with a state of fixed size for each request instead of a KV cache.

Recurrent states are counted in fp32, as engines keep them by default, and the convolution's last
`conv_kernel` - 1 inputs in bf16.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Literal

from pydantic import PositiveInt, model_validator

from spaces.documents import Document
from spaces.errors import InputError
from spaces.precision import KvDtype

_STATE_BYTES, _CONVOLUTION_BYTES = 4, 2


class _FixedState(Document):
    """What all linear attention shares: nothing grows with the context."""

    @property
    @abstractmethod
    def state_bytes(self) -> int:
        """Recurrent state and convolution tail per request and layer."""

    def repeated_parameters(self, hidden_size: int) -> int:
        """Weights that tensor parallelism does not divide: taken as none."""
        return 0

    def kv_bytes_per_token(self, kv: KvDtype) -> float:
        """Bytes a token adds to the cache: none, the state is fixed."""
        return 0.0

    def fixed_bytes(self, kv: KvDtype) -> float:
        """Bytes of a request's state in one layer, whatever the KV format."""
        return float(self.state_bytes)


class KdaAttention(_FixedState):
    """Kimi delta attention: a delta rule with a decay for each channel (arXiv 2510.26692).

    The state of a head is a `head_dim` x `head_dim` matrix. The output gate is a full projection,
    or one of rank `head_dim` without `full_rank_gate`.
    """

    kind: Literal["kda"] = "kda"
    layers: PositiveInt
    heads: PositiveInt
    head_dim: PositiveInt
    conv_kernel: PositiveInt
    full_rank_gate: bool = True
    window_tokens: Literal[0] = 0
    read_limit_tokens: Literal[0] = 0

    @property
    def width(self) -> int:
        """Channels of all heads."""
        return self.heads * self.head_dim

    def parameters_per_layer(self, hidden_size: int) -> int:
        """Weights of Q, K, V, output and gate, the low-rank decay, beta and convolutions."""
        low_rank = self.head_dim * (hidden_size + self.width)
        gate = hidden_size * self.width if self.full_rank_gate else low_rank
        products = 4 * hidden_size * self.width + gate + low_rank
        return products + hidden_size * self.heads + 3 * self.width * self.conv_kernel

    @property
    def state_flops_per_token(self) -> int:
        """FLOPs of one token's state update and read in one layer (decay, delta, write, read)."""
        return 8 * self.width * self.head_dim

    @property
    def state_bytes(self) -> int:
        """Recurrent state and convolution tail per request and layer."""
        tail = 3 * self.width * (self.conv_kernel - 1)
        return self.width * self.head_dim * _STATE_BYTES + tail * _CONVOLUTION_BYTES


class GdnAttention(_FixedState):
    """Gated DeltaNet: a delta rule with one decay for each head (arXiv 2412.06464).

    The state of a value head is a `key_head_dim` x `value_head_dim` matrix; value heads share the
    fewer key heads. Projections are those of Qwen3-Next (transformers 5.24.0, qwen3_next).
    """

    kind: Literal["gdn"] = "gdn"
    layers: PositiveInt
    key_heads: PositiveInt
    value_heads: PositiveInt
    key_head_dim: PositiveInt
    value_head_dim: PositiveInt
    conv_kernel: PositiveInt
    window_tokens: Literal[0] = 0
    read_limit_tokens: Literal[0] = 0

    @model_validator(mode="after")
    def _heads_share_keys(self) -> GdnAttention:
        if self.value_heads % self.key_heads:
            raise InputError(
                "key_heads must divide value_heads",
                key="key_heads",
                value=f"{self.key_heads} of {self.value_heads}",
            )
        return self

    @property
    def heads(self) -> int:
        """Heads that tensor parallelism divides: those of the keys."""
        return self.key_heads

    @property
    def value_width(self) -> int:
        """Channels of all value heads."""
        return self.value_heads * self.value_head_dim

    @property
    def convolved_width(self) -> int:
        """Channels of queries, keys and values, which a short convolution runs over."""
        return 2 * self.key_heads * self.key_head_dim + self.value_width

    def parameters_per_layer(self, hidden_size: int) -> int:
        """Weights of Q, K, V, gate, beta, decay, convolution and output."""
        entry = self.convolved_width + self.value_width + 2 * self.value_heads
        convolution = self.convolved_width * self.conv_kernel
        return hidden_size * (entry + self.value_width) + convolution

    @property
    def state_flops_per_token(self) -> int:
        """FLOPs of one token's state update and read in one layer (decay, delta, write, read)."""
        return 8 * self.value_width * self.key_head_dim

    @property
    def state_bytes(self) -> int:
        """Recurrent state and convolution tail per request and layer."""
        tail = self.convolved_width * (self.conv_kernel - 1)
        return self.value_width * self.key_head_dim * _STATE_BYTES + tail * _CONVOLUTION_BYTES


class MambaAttention(_FixedState):
    """Mamba-2: a state-space layer with one decay for each head (arXiv 2405.21060).

    The state of a head is a `head_dim` x `state_size` matrix; `groups` of heads share their input
    and output vectors. Projections are those of Nemotron-H (transformers 5.24.0, nemotron_h).
    """

    kind: Literal["mamba"] = "mamba"
    layers: PositiveInt
    heads: PositiveInt
    head_dim: PositiveInt
    state_size: PositiveInt
    groups: PositiveInt
    conv_kernel: PositiveInt
    window_tokens: Literal[0] = 0
    read_limit_tokens: Literal[0] = 0

    @property
    def width(self) -> int:
        """Channels of all heads."""
        return self.heads * self.head_dim

    @property
    def convolved_width(self) -> int:
        """Channels that the convolution runs over: inputs and the groups' two vectors."""
        return self.width + 2 * self.groups * self.state_size

    def parameters_per_layer(self, hidden_size: int) -> int:
        """Weights of the joint input projection (gate, input, vectors, steps) and the output."""
        entry = self.width + self.convolved_width + self.heads
        convolution = self.convolved_width * (self.conv_kernel + 1)
        return hidden_size * (entry + self.width) + convolution

    @property
    def state_flops_per_token(self) -> int:
        """FLOPs of one token's state update and read in one layer (decay, write, read)."""
        return 6 * self.width * self.state_size

    @property
    def state_bytes(self) -> int:
        """Recurrent state and convolution tail per request and layer."""
        tail = self.convolved_width * (self.conv_kernel - 1)
        return self.width * self.state_size * _STATE_BYTES + tail * _CONVOLUTION_BYTES


RecurrentAttention = KdaAttention | GdnAttention | MambaAttention
