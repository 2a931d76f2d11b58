"""Feed-forward layers: dense, and mixtures of experts."""

from __future__ import annotations

from typing import Literal

from pydantic import PositiveInt, model_validator

from spaces.documents import Document
from spaces.errors import InputError
from spaces.model.attention import Count


class DenseFfn(Document):
    """A feed-forward layer of three matrices (GLU, arXiv 2002.05202); two if not `gated`."""

    kind: Literal["dense"] = "dense"
    layers: PositiveInt
    intermediate_size: PositiveInt
    gated: bool = True

    def parameters_per_layer(self, hidden_size: int) -> int:
        """Weights of the gate, up and down projections."""
        return matrices(self.gated) * hidden_size * self.intermediate_size


class MoeFfn(Document):
    """A mixture of experts: `top_k` of `routed_experts` per token, plus shared ones for all.

    With `latent_size` the routed experts work in a narrower space, entered and left by one
    projection each way per layer. Experts that are not `gated` have two matrices, not three.
    Fine-grained and shared experts are those of DeepSeekMoE (arXiv 2401.06066).
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
    gated: bool = True

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
        """Weights of one routed expert, and its biases where the model has them."""
        width = self.expert_width(hidden_size)
        inner = self.expert_intermediate_size
        biases = (matrices(self.gated) - 1) * inner + width if self.bias else 0
        return matrices(self.gated) * width * inner + biases

    def shared_expert_parameters(self, hidden_size: int) -> int:
        """Weights of the shared experts of one layer."""
        inner = self.shared_intermediate_size * self.shared_experts
        return matrices(self.gated) * hidden_size * inner

    def shared_parameters_per_layer(self, hidden_size: int) -> int:
        """Weights every token uses: shared experts, router, latent projections."""
        shared = self.shared_expert_parameters(hidden_size)
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


def matrices(gated: bool) -> int:
    """Matrices of a feed-forward network: up and down, and a gate's."""
    return 3 if gated else 2
