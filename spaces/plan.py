"""A deployment: which pools of which chips run which part of the work, and how."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    Field,
    PositiveFloat,
    PositiveInt,
    ValidationInfo,
    field_validator,
    model_validator,
)

from spaces.documents import Document, dump_yaml, read_yaml, validated
from spaces.errors import InputError, did_you_mean
from spaces.precision import KvDtype, WeightsName
from spaces.speculation import Speculation

Role = Literal["aggregated", "prefill", "midfill", "decode", "decode-attention", "decode-experts"]
Topology = Literal[
    "aggregated",
    "prefill-decode",
    "prefill-midfill-decode",
    "prefill-decode+afd",
    "prefill-midfill-decode+afd",
]
EngineName = Literal["vllm", "sglang", "trtllm", "atom", "sambanova", "cerebras", "groq"]
Retention = Literal["lru", "write-through", "offload-at-turn-end", "drop-after-idle"]
LoadAxis = Literal["concurrency", "request_rate", "session_rate", "time_scale"]
LOAD_AXES: tuple[LoadAxis, ...] = get_args(LoadAxis)
Fetch = Literal["always", "when-faster"]
Handoff = Literal["after-prefill", "by-chunk", "by-layer"]
WhenFull = Literal["reject", "try-others"]
Router = Literal["round-robin", "least-loaded", "shortest-queue", "prefix-affinity"]

# Of turns appended to a long context 93 % bring at most 5,000 new tokens (Claude Code traces of
# callanjfox/kv-cache-tester, 44,298 requests).
DEFAULT_MIDFILL_TOKENS = 5000

TOPOLOGY_ROLES: dict[Topology, tuple[Role, ...]] = {
    "aggregated": ("aggregated",),
    "prefill-decode": ("prefill", "decode"),
    "prefill-midfill-decode": ("prefill", "midfill", "decode"),
    "prefill-decode+afd": ("prefill", "decode-attention", "decode-experts"),
    "prefill-midfill-decode+afd": ("prefill", "midfill", "decode-attention", "decode-experts"),
}

# Attention, exchange and experts can all be busy with three micro-batches (arXiv 2507.19427,
# section 4; arXiv 2504.02263, equation 6).
DEFAULT_MICRO_BATCHES = 3


class Pool(Document):
    """Equal replicas of one engine configuration on one kind of chip.

    Chips of one replica = `tp` x `dp` x `pp`. `dp` counts attention data-parallel ranks; `ep`
    counts the ranks of the same tp x dp group over which experts are spread. `max_num_seqs` and
    `max_num_batched_tokens` hold for each attention data-parallel rank. A `decode-experts` pool
    holds the routed experts that a `decode-attention` pool asks; it has no requests of its own,
    and so neither batch limits nor attention ranks. `engine` (with its version), `kv_dtype` and
    `hbm_fraction` are those of the plan where they are left out.
    """

    role: Role
    chip: str
    replicas: PositiveInt = 1
    tp: PositiveInt = 1
    pp: PositiveInt = 1
    ep: PositiveInt = 1
    dp: PositiveInt = 1
    max_num_seqs: PositiveInt = 256
    max_num_batched_tokens: PositiveInt = 8192
    engine: EngineName | None = None
    engine_version: str | None = None
    kv_dtype: KvDtype | None = None
    hbm_fraction: Annotated[float, Field(gt=0, le=1)] | None = None

    @property
    def chips_per_replica(self) -> int:
        """Chips one replica occupies."""
        return self.tp * self.dp * self.pp

    @property
    def chips(self) -> int:
        """Chips the pool occupies."""
        return self.replicas * self.chips_per_replica

    @model_validator(mode="after")
    def _version_is_of_its_engine(self) -> Pool:
        if self.engine_version is not None and self.engine is None:
            raise InputError(
                "a pool's `engine_version` goes with its `engine`",
                key="engine_version",
                value=self.engine_version,
                remedy="name the engine too, or set the version of the whole plan",
            )
        return self

    @model_validator(mode="after")
    def _experts_have_no_requests(self) -> Pool:
        if self.role != "decode-experts":
            return self
        for key in ("max_num_seqs", "max_num_batched_tokens", "dp"):
            if getattr(self, key) != Pool.model_fields[key].default:
                raise InputError(
                    "a decode-experts pool works for the requests of the decode-attention pool",
                    key=key,
                    value=getattr(self, key),
                    remedy="set it there and leave it out here",
                )
        return self

    @property
    def decodes(self) -> bool:
        """Whether requests get their tokens beyond the first here."""
        return self.role in ("aggregated", "decode", "decode-attention")

    @property
    def takes_prompts(self) -> bool:
        """Whether requests enter here."""
        return self.role in ("aggregated", "prefill", "midfill")

    @property
    def holds_experts(self) -> bool:
        """Whether routed experts lie on its chips."""
        return self.role != "decode-attention"

    @property
    def layout(self) -> str:
        """The parallel layout in one word, such as `tp4-pp1-dp2-ep8`."""
        return f"tp{self.tp}-pp{self.pp}-dp{self.dp}-ep{self.ep}"


class Precision(Document):
    """Number formats of weights and KV cache; `native` is the checkpoint's own."""

    weights: WeightsName = "native"
    kv: KvDtype = "bf16"


# What a search chooses of the tiers, and tables tell of them.
TIER_CHOICES = (
    "host_gb_per_chip",
    "swap_gb_per_chip",
    "ssd_gb_per_chip",
    "shared_gb",
    "retention",
    "fetch",
    "layerwise",
    "prefetch",
    "handoff",
    "idle_limit_s",
)


class KvTiers(Document):
    """Where KV rests beside HBM, and how it gets there.

    Host memory and local disks are given per chip, the store that all replicas share as a whole,
    all in decimal GB; `shared_gb_per_s` bounds the store itself, beside the network cards that
    reach it.
    Retention: `lru` moves cached blocks down a tier when HBM needs their room; `write-through`
    copies them down as soon as they are computed; `offload-at-turn-end` moves them down when their
    request ends; `drop-after-idle` is `lru` that forgets blocks after `idle_limit_s` without use.
    A request preempted while it decodes is swapped to host memory within `swap_gb_per_chip`, which
    is apart from the host tier; without it, it is computed again.
    Prefix blocks below HBM are fetched `always`, or `when-faster` than computing them again;
    `layerwise` computes the prompt while all but the first layer of its prefix are on their way.
    Fetching begins when a request is admitted; with `prefetch` while it waits for that, as far as
    HBM has room.
    Between pools KV is sent `after-prefill`; `by-chunk`, each chunk of the prompt while the next
    one is computed; or `by-layer`, each layer while the next one is. Without `handoff` it is sent
    the engine's own way. The last two set a place in the decode pool aside while the prompt is
    computed.
    """

    retention: Retention = "lru"
    idle_limit_s: PositiveFloat | None = None
    host_gb_per_chip: Annotated[float, Field(ge=0)] = 0.0
    swap_gb_per_chip: Annotated[float, Field(ge=0)] = 0.0
    ssd_gb_per_chip: Annotated[float, Field(ge=0)] = 0.0
    shared_gb: Annotated[float, Field(ge=0)] = 0.0
    shared_gb_per_s: PositiveFloat | None = None
    fetch: Fetch = "always"
    layerwise: bool = False
    prefetch: bool = False
    handoff: Handoff | None = None

    def choices(self) -> dict[str, object]:
        """The values of `TIER_CHOICES` by name."""
        return {name: getattr(self, name) for name in TIER_CHOICES}

    @model_validator(mode="after")
    def _limit_belongs_to_its_retention(self) -> KvTiers:
        if (self.retention == "drop-after-idle") != (self.idle_limit_s is not None):
            raise InputError(
                "`idle_limit_s` goes with retention drop-after-idle, and only with it",
                key="idle_limit_s",
                value=self.idle_limit_s,
            )
        if self.shared_gb_per_s is not None and self.shared_gb == 0:
            raise InputError(
                "a store without room has no bandwidth",
                key="shared_gb_per_s",
                value=self.shared_gb_per_s,
                remedy="set `shared_gb`",
            )
        return self

    @property
    def below_hbm(self) -> bool:
        """Whether there is any tier below HBM."""
        return self.host_gb_per_chip + self.ssd_gb_per_chip + self.shared_gb > 0


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """What the pools of a plan may have in common, as it holds for one of them."""

    engine: EngineName
    engine_version: str
    precision: Precision
    hbm_fraction: float


class Hosts(Document):
    """Processors beside those that the chips sit with: `count` sockets of one `kind`.

    They do the front end's work and run the tools that agents call, where the workload has tools
    run on hosts. Without them the hosts that the chips sit with do so.
    """

    kind: str
    count: PositiveInt

    def __str__(self) -> str:
        return f"{self.count}x {self.kind}"


_LOAD_WORDS: dict[LoadAxis, str] = {
    "concurrency": "concurrency {}",
    "request_rate": "{:g} requests/s",
    "session_rate": "{:g} sessions/s",
    "time_scale": "recorded times x {:g}",
}


class Load(Document):
    """What the deployment is asked to serve: a closed loop or an open one, of the whole of it.

    `concurrency` counts requests in flight, or sessions alive where the workload has sessions.
    The rates are mean arrivals per second, of requests or of new sessions; `time_scale` multiplies
    the recorded times, so that 0.5 is twice the recorded load.
    """

    concurrency: PositiveInt | None = None
    request_rate: PositiveFloat | None = Field(default=None, description="requests per second")
    session_rate: PositiveFloat | None = Field(default=None, description="sessions per second")
    time_scale: PositiveFloat | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> Load:
        given = [axis for axis in LOAD_AXES if getattr(self, axis) is not None]
        if len(given) != 1:
            raise InputError(
                f"a load is exactly one of {', '.join(LOAD_AXES)}",
                value=" and ".join(given) or "none of them",
                remedy="give one of them; without a load, requests arrive as recorded",
            )
        return self

    @property
    def axis(self) -> LoadAxis:
        """Which kind of load it is."""
        return next(axis for axis in LOAD_AXES if getattr(self, axis) is not None)

    @property
    def value(self) -> float:
        """The concurrency, rate or factor."""
        return float(getattr(self, self.axis))

    def __str__(self) -> str:
        return _LOAD_WORDS[self.axis].format(getattr(self, self.axis))


class DeploymentPlan(Document):
    """Everything a simulation or a manifest needs to know about a deployment.

    Engine, KV format and HBM share hold for every pool that has none of its own. They are kept as
    those of the first pool, and the others name only what is different, so that the same
    deployment is the same plan however a file says it.
    `max_queued_requests` bounds the waiting queue of each attention data-parallel rank in the
    pools that prompts enter. `when_full` says what becomes of a request whose rank has no room
    left in it: `reject`, or `try-others` (the default), by which it goes to the least loaded rank
    of the pool that has room, and is rejected where none has.
    """

    model: str
    engine: EngineName = "vllm"
    engine_version: str = ""
    topology: Topology
    pools: tuple[Pool, ...]
    precision: Precision = Precision()
    kv: KvTiers = KvTiers()
    load: Load | None = None
    max_model_len: PositiveInt | None = None
    hbm_fraction: Annotated[float, Field(gt=0, le=1)] = 0.9
    block_size: PositiveInt = 16
    prefix_caching: bool = True
    router: Router = "least-loaded"
    max_queued_requests: PositiveInt | None = None
    when_full: WhenFull | None = None
    midfill_threshold_tokens: PositiveInt | None = None
    speculation: Speculation | None = None
    micro_batches: PositiveInt | None = None
    hosts: Hosts | None = None

    @field_validator("speculation")
    @classmethod
    def _without_drafts_there_is_none(cls, value: Speculation | None) -> Speculation | None:
        return value if value is not None and value.depth > 0 else None

    @field_validator("topology", mode="before")
    @classmethod
    def _known_topology(cls, value: Any) -> Any:
        if isinstance(value, str) and value not in TOPOLOGY_ROLES:
            raise InputError(
                "the topology must be a known one",
                value=value,
                remedy=did_you_mean(value, TOPOLOGY_ROLES),
            )
        return value

    @field_validator("pools", mode="after")
    @classmethod
    def _pools_in_order_of_work(
        cls, pools: tuple[Pool, ...], info: ValidationInfo
    ) -> tuple[Pool, ...]:
        """The same deployment is the same plan, whichever pool a file names first."""
        order = TOPOLOGY_ROLES.get(info.data.get("topology", ""), ())
        return tuple(sorted(pools, key=lambda pool: (*order, pool.role).index(pool.role)))

    @model_validator(mode="after")
    def _roles_match_topology(self) -> DeploymentPlan:
        wanted = TOPOLOGY_ROLES[self.topology]
        got = tuple(pool.role for pool in self.pools)
        if sorted(got) != sorted(wanted):
            raise InputError(
                f"topology {self.topology} needs one pool of each role: {', '.join(wanted)}",
                key="pools",
                value=list(got),
            )
        return self

    @model_validator(mode="after")
    def _full_queues_are_bounded(self) -> DeploymentPlan:
        if self.when_full is not None and self.max_queued_requests is None:
            raise InputError(
                "a queue without a limit is never full",
                key="when_full",
                value=self.when_full,
                remedy="set `max_queued_requests`",
            )
        return self

    @model_validator(mode="after")
    def _pools_hand_over(self) -> DeploymentPlan:
        if self.kv.handoff is not None and self.topology == "aggregated":
            raise InputError(
                "one pool hands no KV to another",
                key="kv.handoff",
                value=self.kv.handoff,
                remedy="leave it out, or use a topology with a prefill pool",
            )
        return self

    @model_validator(mode="after")
    def _threshold_belongs_to_midfill(self) -> DeploymentPlan:
        if self.midfill_threshold_tokens is not None and not self.has_midfill:
            raise InputError(
                "a midfill threshold needs a midfill pool",
                key="midfill_threshold_tokens",
                value=self.midfill_threshold_tokens,
                remedy="use topology prefill-midfill-decode",
            )
        return self

    @model_validator(mode="after")
    def _split_decode_is_whole(self) -> DeploymentPlan:
        """Attention and experts pools come in pairs, which alone have micro-batches."""
        if self.micro_batches is not None and not self.splits_decode:
            raise InputError(
                "micro-batches go between attention and expert pools",
                key="micro_batches",
                value=self.micro_batches,
                remedy="use a topology with +afd",
            )
        if self.splits_decode:
            counts = [self.pool(r).replicas for r in ("decode-attention", "decode-experts")]
            if counts[0] != counts[1]:
                raise InputError(
                    "each replica of attention works with one replica of experts",
                    key="pools",
                    value=f"{counts[0]} and {counts[1]} replicas",
                    remedy="set equal replicas; sizes may differ (dp there, tp here)",
                )
        return self

    @model_validator(mode="after")
    def _settings_in_one_form(self) -> DeploymentPlan:
        settled = with_own_settings(self, tuple(map(self.settings, self.pools)))
        for name in ("engine", "engine_version", "precision", "hbm_fraction", "pools"):
            object.__setattr__(self, name, getattr(settled, name))
        return self

    def settings(self, pool: Pool) -> PoolSettings:
        """What holds for one of the pools: its own settings, else those of the plan."""
        kv = pool.kv_dtype or self.precision.kv
        return PoolSettings(
            engine=pool.engine or self.engine,
            engine_version=(pool.engine_version or "") if pool.engine else self.engine_version,
            precision=self.precision.model_copy(update={"kv": kv}),
            hbm_fraction=pool.hbm_fraction or self.hbm_fraction,
        )

    @property
    def engines(self) -> tuple[EngineName, ...]:
        """The engines that run its pools, each once, in order of work."""
        return tuple(dict.fromkeys(self.settings(pool).engine for pool in self.pools))

    @property
    def splits_decode(self) -> bool:
        """Whether decode is split into attention and expert pools."""
        return "decode-experts" in TOPOLOGY_ROLES[self.topology]

    @property
    def ping_pong(self) -> int:
        """Micro-batches between attention and expert pools; 0 where there are none."""
        return (self.micro_batches or DEFAULT_MICRO_BATCHES) if self.splits_decode else 0

    @property
    def serving_pools(self) -> tuple[Pool, ...]:
        """The pools that requests are in: all but that of experts alone."""
        return tuple(pool for pool in self.pools if pool.role != "decode-experts")

    def verified_tokens(self, pool: Pool) -> int:
        """Tokens a decoding request has in a step of `pool`: its next one and the drafts."""
        drafts = self.speculation.depth if self.speculation and pool.decodes else 0
        return 1 + drafts

    @property
    def has_midfill(self) -> bool:
        """Whether turns appended to a cached context have a pool of their own."""
        return "midfill" in TOPOLOGY_ROLES[self.topology]

    @property
    def midfill_tokens(self) -> int:
        """Most uncached tokens of a turn for the midfill pool; 0 where there is none."""
        if not self.has_midfill:
            return 0
        return self.midfill_threshold_tokens or DEFAULT_MIDFILL_TOKENS

    def pool(self, role: Role) -> Pool:
        """The pool of a role."""
        return next(pool for pool in self.pools if pool.role == role)

    @property
    def chips(self) -> int:
        """Chips the deployment occupies."""
        return sum(pool.chips for pool in self.pools)

    @property
    def chips_by_kind(self) -> dict[str, int]:
        """Chips occupied of each kind."""
        counts: dict[str, int] = {}
        for pool in self.pools:
            counts[pool.chip] = counts.get(pool.chip, 0) + pool.chips
        return counts

    @property
    def plan_id(self) -> str:
        """Twelve hexadecimal digits that name this plan, whatever its load."""
        return _digest(self.model_copy(update={"load": None}))

    @property
    def point_id(self) -> str:
        """Twelve hexadecimal digits that name this plan at its load."""
        return _digest(self)

    def at(self, load: Load) -> DeploymentPlan:
        """The same plan under another load."""
        return self.model_copy(update={"load": load})

    def to_yaml(self) -> str:
        """The plan as text that `load_plan` reads back to an equal plan."""
        return dump_yaml(self.model_dump(mode="json", exclude_none=True))


def with_own_settings(plan: DeploymentPlan, settings: Sequence[PoolSettings]) -> DeploymentPlan:
    """The plan with these settings of its pools, in the one form in which plans are kept.

    Weights are the plan's alone: all pools have the same.
    """
    first = settings[0]
    pools = [
        pool.model_copy(update=_other_settings(own, first))
        for pool, own in zip(plan.pools, settings, strict=True)
    ]
    return plan.model_copy(
        update={
            "engine": first.engine,
            "engine_version": first.engine_version,
            "precision": first.precision,
            "hbm_fraction": first.hbm_fraction,
            "pools": tuple(pools),
        }
    )


def _other_settings(own: PoolSettings, first: PoolSettings) -> dict[str, Any]:
    """What a pool has to name because the first pool has it otherwise."""
    alike = (own.engine, own.engine_version) == (first.engine, first.engine_version)
    kv, share = own.precision.kv, own.hbm_fraction
    return {
        "engine": None if alike else own.engine,
        "engine_version": None if alike else own.engine_version or None,
        "kv_dtype": None if kv == first.precision.kv else kv,
        "hbm_fraction": None if share == first.hbm_fraction else share,
    }


def load_plan(path: Path) -> DeploymentPlan:
    """Read a plan file; a wrong one is told as an `InputError`."""
    return validated(DeploymentPlan, read_yaml(path), str(path))


def _digest(plan: DeploymentPlan) -> str:
    text = plan.model_dump_json(exclude_none=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
