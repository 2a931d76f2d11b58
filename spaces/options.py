"""What a job lets the search choose from."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PositiveFloat, PositiveInt

from spaces.documents import Document
from spaces.plan import (
    DEFAULT_MICRO_BATCHES,
    DEFAULT_MIDFILL_TOKENS,
    Fetch,
    Retention,
    Role,
    Router,
    Topology,
)


def _listed(value: Any) -> Any:
    return value if isinstance(value, list | tuple) else (value,)


OneOrMore = BeforeValidator(_listed)
Sizes = Annotated[tuple[PositiveInt, ...], OneOrMore, Field(min_length=1)]
NonNegative = Annotated[float, Field(ge=0)]


class SpaceOptions(Document):
    """The dimensions of the search; a single value pins one.

    An empty `expert_parallel` stands for every size the engine can run, and empty lists of chips
    for every kind in the budget.
    """

    topology: Annotated[tuple[Topology, ...], OneOrMore, Field(min_length=1)] = (
        "aggregated",
        "prefill-decode",
    )
    tensor_parallel: Sizes = (1, 2, 4, 8, 16)
    pipeline_parallel: Sizes = (1, 2, 4)
    data_parallel: Sizes = (1, 2, 4, 8, 16, 32, 64)
    expert_parallel: Annotated[tuple[PositiveInt, ...], OneOrMore] = ()
    max_num_seqs: Sizes = (8, 16, 32, 64, 128, 256, 512)
    max_num_batched_tokens: Sizes = (2048, 4096, 8192, 16384)
    host_gb_per_chip: Annotated[tuple[NonNegative, ...], OneOrMore, Field(min_length=1)] = (0.0,)
    ssd_gb_per_chip: Annotated[tuple[NonNegative, ...], OneOrMore, Field(min_length=1)] = (0.0,)
    shared_gb: Annotated[tuple[NonNegative, ...], OneOrMore, Field(min_length=1)] = (0.0,)
    retention: Annotated[tuple[Retention, ...], OneOrMore, Field(min_length=1)] = ("lru",)
    fetch: Annotated[tuple[Fetch, ...], OneOrMore, Field(min_length=1)] = ("always",)
    layerwise: Annotated[tuple[bool, ...], OneOrMore, Field(min_length=1)] = (False,)
    idle_limit_s: Annotated[tuple[PositiveFloat, ...], OneOrMore, Field(min_length=1)] = (300.0,)
    midfill_threshold_tokens: Sizes = (DEFAULT_MIDFILL_TOKENS,)
    micro_batches: Sizes = (DEFAULT_MICRO_BATCHES,)
    router: Annotated[tuple[Router, ...], OneOrMore, Field(min_length=1)] = ("least-loaded",)
    aggregated_chips: Annotated[tuple[str, ...], OneOrMore] = ()
    prefill_chips: Annotated[tuple[str, ...], OneOrMore] = ()
    midfill_chips: Annotated[tuple[str, ...], OneOrMore] = ()
    decode_chips: Annotated[tuple[str, ...], OneOrMore] = ()
    decode_attention_chips: Annotated[tuple[str, ...], OneOrMore] = ()
    decode_experts_chips: Annotated[tuple[str, ...], OneOrMore] = ()

    def chips(self, role: Role) -> tuple[str, ...]:
        """The chip kinds asked for in a role; none means any."""
        chosen: tuple[str, ...] = getattr(self, chips_key(role))
        return chosen


def chips_key(role: Role) -> str:
    """The key of `SpaceOptions` that names the chip kinds of a role.

    >>> chips_key("decode-attention")
    'decode_attention_chips'
    """
    return f"{role.replace('-', '_')}_chips"
