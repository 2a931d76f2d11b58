"""What each turn brings: tokens kept from before, the previous answer, and what is new."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from objectives.workload.workload import NO_PARENT, Numbers, Tokens, Workload


@dataclass(frozen=True, slots=True)
class TurnTokens:
    """The input of each request [n] in three parts: input = kept + previous output + external.

    `kept` was there before, in whole blocks, for a cache that forgets nothing. `previous_output`
    is the answer that the turn before gave, which is new only to a cache that does not keep
    generated tokens. `external` came from outside: a tool, a user, a document. `extends` [n] is
    the nearest ancestor whose input the request goes on from, or -1.
    """

    kept: Tokens
    previous_output: Tokens
    external: Tokens
    extends: Numbers


def turn_tokens(workload: Workload) -> TurnTokens:
    """The parts of every input; without prefix information a turn extends its parent's input
    where it is not shorter, and nothing else is kept."""
    extends = _extended(workload)
    earlier = np.maximum(extends, 0)
    if workload.block_tokens:
        kept = hit_tokens(workload)
    else:
        kept = np.where(extends == NO_PARENT, 0, workload.input_tokens[earlier])
    grown = np.where(
        extends == NO_PARENT, 0, workload.input_tokens - workload.input_tokens[earlier]
    )
    output = np.clip(
        np.minimum(grown, workload.output_tokens[earlier]), 0, workload.input_tokens - kept
    )
    return TurnTokens(
        kept=kept,
        previous_output=output,
        external=workload.input_tokens - kept - output,
        extends=extends,
    )


def hit_tokens(workload: Workload) -> Tokens:
    """Input tokens of each request [n] that an earlier one had too, as whole leading blocks.

    This is what a cache that forgets nothing gives, at most the input.
    """
    seen = np.zeros(int(workload.block_ids.max()) + 1 if len(workload.block_ids) else 0, bool)
    runs = np.zeros(len(workload), dtype=np.int64)
    for request, (start, end) in enumerate(pairwise(workload.block_offsets.tolist())):
        blocks = workload.block_ids[start:end]
        known = seen[blocks]
        runs[request] = len(known) if known.all() else int(known.argmin())
        seen[blocks[runs[request] :]] = True
    return np.minimum(runs * workload.block_tokens, workload.input_tokens)


def _extended(workload: Workload) -> Numbers:
    """The nearest ancestor whose whole blocks are the first ones of a request."""
    if not workload.block_tokens:
        parent = workload.parent
        longer = workload.input_tokens >= workload.input_tokens[np.maximum(parent, 0)]
        return np.where(longer, parent, NO_PARENT).astype(np.int32)
    whole = (workload.input_tokens // workload.block_tokens).tolist()
    parents = workload.parent.tolist()
    extends = np.full(len(workload), NO_PARENT, dtype=np.int32)
    for request, ancestor in enumerate(parents):
        mine = workload.blocks(request)
        while ancestor != NO_PARENT and not _leads(
            workload.blocks(ancestor)[: whole[ancestor]], mine
        ):
            ancestor = parents[ancestor]
        extends[request] = ancestor
    return extends


def _leads(head: Numbers, blocks: Numbers) -> bool:
    if len(head) > len(blocks):
        return False
    if len(head) and head[-1] != blocks[len(head) - 1]:
        return False
    return bool((blocks[: len(head)] == head).all())
