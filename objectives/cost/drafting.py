"""What a step of a pool drafts and verifies."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from objectives.cost.step_costs import Floats
from spaces.model import AttentionGroup, DenseFfn, ModelSpec, MoeFfn
from spaces.plan import Pool
from spaces.speculation import Speculation, draft_head, draft_layer


@dataclass(frozen=True, slots=True)
class Drafting:
    """The draft layer of a pool and how often it runs in a step; without one nothing is drafted.

    A decoding request has `verified` tokens in a step: its next one and the drafts. The layer runs
    once over all tokens of the step, which gives the first draft and keeps its KV complete, and
    `further_passes` times over one token of each request (multi-token prediction of DeepSeek-V3,
    arXiv 2412.19437, section 2.2; EAGLE, arXiv 2401.15077; drafts verified in one step, Leviathan
    et al., arXiv 2211.17192).
    """

    verified: int = 1
    further_passes: int = 0
    layer: tuple[AttentionGroup, DenseFfn | MoeFfn] | None = None
    joined_inputs: int = 0
    vocab_size: int = 0

    def requests(self, tokens: Floats, seats: int) -> Floats:
        """Decoding requests in steps of so many tokens, at least one and at most `seats`."""
        return np.clip(tokens / self.verified, 1.0, float(seats))


def drafting_of(model: ModelSpec, pool: Pool, speculation: Speculation | None) -> Drafting:
    """How a pool drafts; one that hands its requests on runs the layer over prompts alone."""
    head = draft_head(model, speculation) if speculation else None
    if speculation is None or head is None:
        return Drafting()
    drafts = speculation.depth if pool.decodes else 0
    return Drafting(
        verified=1 + drafts,
        further_passes=max(0, drafts - 1),
        layer=draft_layer(model, head),
        joined_inputs=head.joined_inputs,
        vocab_size=head.vocab_size or model.vocab_size,
    )
