"""What a job lets the search choose from."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from spaces.documents import Document
from spaces.errors import InputError
from spaces.plan import (
    DEFAULT_MICRO_BATCHES,
    DEFAULT_MIDFILL_TOKENS,
    Fetch,
    Handoff,
    Hosts,
    Retention,
    Role,
    Router,
    Topology,
    WhenFull,
)

Option = TypeVar("Option")

# Prompts in progress at once on a rank of a prefill or midfill pool: more than its steps have room
# for.
PREFILL_SEQS = 32


def _listed(value: Any) -> Any:
    return value if isinstance(value, list | tuple) else (value,)


def distinct(values: tuple[Option, ...]) -> tuple[Option, ...]:
    """The values in their order, each once."""
    return tuple(dict.fromkeys(values))


OneOrMore = BeforeValidator(_listed)
# A value or a list of values to choose from; `Several` needs at least one.
AnyOf = Annotated[tuple[Option, ...], OneOrMore, AfterValidator(distinct)]
Several = Annotated[tuple[Option, ...], OneOrMore, Field(min_length=1), AfterValidator(distinct)]
NonNegative = Annotated[float, Field(ge=0)]


class PoolOptions(Document):
    """What one pool may have, in place of what all may; an empty list leaves it at that."""

    chips: AnyOf[str] = ()
    replicas: AnyOf[PositiveInt] = ()
    tensor_parallel: AnyOf[PositiveInt] = ()
    pipeline_parallel: AnyOf[PositiveInt] = ()
    data_parallel: AnyOf[PositiveInt] = ()
    expert_parallel: AnyOf[PositiveInt] = ()
    max_num_seqs: AnyOf[PositiveInt] = ()
    max_num_batched_tokens: AnyOf[PositiveInt] = ()


class SpaceOptions(Document):
    """The dimensions of the search; a single value pins one.

    Empty `replicas` stand for as many as the budget has room for, an empty `expert_parallel` for
    every size the engine can run. `pools` narrows single pools. None stands for queues without a
    limit, for the default of what becomes of requests at a full one, and for the engine's own way
    of handing KV over. A `host_count` of 0
    leaves the hosts' work to the hosts that the chips sit with.
    """

    topology: Several[Topology] = ("aggregated", "prefill-decode")
    replicas: AnyOf[PositiveInt] = ()
    tensor_parallel: Several[PositiveInt] = (1, 2, 4, 8, 16)
    pipeline_parallel: Several[PositiveInt] = (1, 2, 4)
    data_parallel: Several[PositiveInt] = (1, 2, 4, 8, 16, 32, 64)
    expert_parallel: AnyOf[PositiveInt] = ()
    max_num_seqs: Several[PositiveInt] = (8, 16, 32, 64, 128, 256, 512)
    max_num_batched_tokens: Several[PositiveInt] = (2048, 4096, 8192, 16384)
    pools: dict[Role, PoolOptions] = Field(default_factory=dict)
    host_gb_per_chip: Several[NonNegative] = (0.0,)
    swap_gb_per_chip: Several[NonNegative] = (0.0,)
    ssd_gb_per_chip: Several[NonNegative] = (0.0,)
    shared_gb: Several[NonNegative] = (0.0,)
    retention: Several[Retention] = ("lru",)
    fetch: Several[Fetch] = ("always",)
    layerwise: Several[bool] = (False,)
    prefetch: Several[bool] = (False,)
    handoff: Several[Handoff | None] = (None,)
    idle_limit_s: Several[PositiveFloat] = (300.0,)
    midfill_threshold_tokens: Several[PositiveInt] = (DEFAULT_MIDFILL_TOKENS,)
    micro_batches: Several[PositiveInt] = (DEFAULT_MICRO_BATCHES,)
    max_queued_requests: Several[PositiveInt | None] = (None,)
    when_full: Several[WhenFull | None] = (None,)
    router: Several[Router] = ("least-loaded",)
    host_kind: AnyOf[str] = ()
    host_count: Several[NonNegativeInt] = (0,)

    @property
    def hosts(self) -> tuple[Hosts | None, ...]:
        """The hosts a plan may have beside its chips' own, None being these."""
        counted = [
            Hosts(kind=kind, count=count)
            for kind in self.host_kind
            for count in sorted(self.host_count)
            if count
        ]
        return (*([None] if 0 in self.host_count else []), *counted)

    @model_validator(mode="after")
    def _hosts_are_of_a_kind(self) -> SpaceOptions:
        if bool(self.host_kind) != any(self.host_count):
            raise InputError(
                "`host_kind` and a `host_count` above 0 go together",
                key="host_count" if self.host_kind else "host_kind",
                value=list(self.host_count) if self.host_kind else "none",
                remedy="name both, for example host_kind: xeon6-6980p, host_count: [2, 4, 8]",
            )
        return self

    @model_validator(mode="after")
    def _experts_follow_their_attention(self) -> SpaceOptions:
        own = self.pools.get("decode-experts", PoolOptions())
        for key in ("replicas", "data_parallel", "max_num_seqs", "max_num_batched_tokens"):
            if getattr(own, key):
                raise InputError(
                    "a decode-experts pool works for the requests of the decode-attention pool",
                    key=f"pools.decode-experts.{key}",
                    value=list(getattr(own, key)),
                    remedy="set it for decode-attention",
                )
        return self

    @model_validator(mode="after")
    def _what_is_asked_can_be(self) -> SpaceOptions:
        if any(self.when_full) and not any(self.max_queued_requests):
            raise InputError(
                "a queue without a limit is never full",
                key="when_full",
                value=list(self.when_full),
                remedy="give `max_queued_requests`",
            )
        if any(self.handoff) and set(self.topology) == {"aggregated"}:
            raise InputError(
                "one pool hands no KV to another",
                key="handoff",
                value=list(self.handoff),
                remedy="leave it out, or name a topology with a prefill pool",
            )
        return self

    def of(self, role: Role) -> PoolOptions:
        """What a pool may have: its own values, and where it has none those of all pools.

        Two batch limits are no choice unless the pool has values of its own, for they change
        nothing: the seats of a prefill or midfill pool, and the step tokens of a decode pool. Of
        the latter there are none here: a step has as few as the seats need.
        """
        own = self.pools.get(role, PoolOptions())
        shared = {key: getattr(self, key, ()) for key in PoolOptions.model_fields}
        if role in ("prefill", "midfill"):
            shared["max_num_seqs"] = (PREFILL_SEQS,)
        if role in ("decode", "decode-attention"):
            shared["max_num_batched_tokens"] = ()
        return PoolOptions(**{key: getattr(own, key) or shared[key] for key in shared})
