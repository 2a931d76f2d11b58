"""Workloads drawn from stated distributions, for a job without a trace."""

from __future__ import annotations

from typing import Annotated

import numpy as np
import numpy.typing as npt
from pydantic import Field, PositiveInt, model_validator

from objectives.workload.arrivals import Arrivals, Parameterless
from objectives.workload.distributions import MOST_TOKENS, Distribution
from objectives.workload.workload import Tokens, Workload
from spaces.documents import Document
from spaces.errors import InputError

# Prefixes are shared in whole blocks of this many tokens.
BLOCK_TOKENS = 64

# The stream of a quantity is told by its index, so new quantities go to the end.
STREAMS = ("arrivals", "input_tokens", "output_tokens")


class SyntheticSpec(Document):
    """A workload by its distributions: lengths and gaps are drawn independently.

    `shared_prefix_tokens` is the beginning, part of `input_tokens`, that all requests have in
    common (a system prompt). It is shared in whole blocks of 64 tokens, rounded down. An input
    that is shorter than the prefix lies within it.
    """

    requests: PositiveInt
    input_tokens: Distribution
    output_tokens: Distribution
    shared_prefix_tokens: Annotated[int, Field(ge=0, le=MOST_TOKENS)] = 0
    arrivals: Arrivals = Arrivals(poisson=Parameterless())

    @model_validator(mode="after")
    def _prefix_is_a_block(self) -> SyntheticSpec:
        if 0 < self.shared_prefix_tokens < BLOCK_TOKENS:
            raise InputError(
                f"a shared prefix must be 0 or at least one block of {BLOCK_TOKENS} tokens",
                key="shared_prefix_tokens",
                value=self.shared_prefix_tokens,
            )
        return self


def generate(spec: SyntheticSpec, seed: int) -> Workload:
    """The requests of `spec`, arriving at a mean rate of 1 per second from time 0.

    Each quantity has a random stream of its own, split from `seed`: changing one distribution
    leaves the draws of the others as they were, and more requests begin with the same ones.

    >>> spec = SyntheticSpec.model_validate(
    ...     {"requests": 3, "input_tokens": 100, "output_tokens": 10, "arrivals": "constant"})
    >>> generate(spec, seed=1).arrival_s.tolist()
    [0.0, 1.0, 2.0]
    """
    n = spec.requests
    gaps = spec.arrivals.gaps(_stream(seed, "arrivals"), n - 1)
    input_tokens = spec.input_tokens.draws(_stream(seed, "input_tokens"), n)
    offsets, ids = _blocks(input_tokens, spec.shared_prefix_tokens // BLOCK_TOKENS)
    return Workload(
        name="synthetic",
        arrival_s=np.concatenate(([0.0], np.cumsum(gaps))),
        input_tokens=input_tokens,
        output_tokens=spec.output_tokens.draws(_stream(seed, "output_tokens"), n),
        block_tokens=BLOCK_TOKENS if spec.shared_prefix_tokens else 0,
        block_offsets=offsets,
        block_ids=ids,
    )


def _stream(seed: int, quantity: str) -> np.random.Generator:
    key = (STREAMS.index(quantity),)
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key))


def _blocks(input_tokens: Tokens, shared: int) -> tuple[Tokens, npt.NDArray[np.int32]]:
    """Offsets and ids: the first whole blocks up to `shared` are the same, all others new."""
    if not shared:
        return np.zeros(len(input_tokens) + 1, dtype=np.int64), np.zeros(0, dtype=np.int32)
    counts = -(-input_tokens // BLOCK_TOKENS)
    common = np.minimum(input_tokens // BLOCK_TOKENS, shared)
    offsets = np.concatenate(([0], np.cumsum(counts)))
    place = np.arange(offsets[-1]) - np.repeat(offsets[:-1], counts)
    fresh = place >= np.repeat(common, counts)
    number = common.max() + np.cumsum(fresh) - 1
    return offsets, np.where(fresh, number, place).astype(np.int32)
