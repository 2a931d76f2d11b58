"""What the simulator needs to know of a deployment, in numbers only."""

from __future__ import annotations

from dataclasses import dataclass

from objectives.cost.step_costs import StepCosts
from spaces.plan import Retention, Role, Router


@dataclass(frozen=True, slots=True)
class PoolSetup:
    """A pool of equal replicas, each of `ranks` attention data-parallel ranks in lock step.

    Seats, tokens of a step and KV blocks are those of one rank. `request_blocks` are taken by each
    running request beside its tokens. `host_tokens` and `ssd_tokens` are the room of a rank's
    lower tiers, and `host_s_per_token` and `ssd_s_per_token` the time to fetch a token's KV from
    there. A request preempted while it decodes leaves its KV in host memory if there is room for
    it within `swap_tokens`. `link_bytes_per_s` is what one rank sends or receives. An admission
    beside running requests leaves `watermark_blocks` available. A micro-batch holds at most
    `flight_requests` of a rank's requests, or by default an even share of its decoding ones for
    each pipeline stage.
    KV that is handed on takes `copy_s_per_byte` of the memory of a rank, which the transfers of a
    rank share: on its way out of a pool, or on its way in where requests decode. A decode pool
    without `stores_answers` leaves nothing in the shared store.
    Beside running requests a replica looks at its queues every `admission_steps` steps; with
    `admission_together` also as soon as every rank could admit one (`admission.py`).
    """

    role: Role
    replicas: int
    ranks: int
    seats: int
    step_tokens: int
    alternating: bool
    kv_blocks: int
    request_blocks: int
    costs: StepCosts
    host_tokens: int = 0
    host_s_per_token: float = 0.0
    ssd_tokens: int = 0
    ssd_s_per_token: float = 0.0
    link_bytes_per_s: float = float("inf")
    watermark_blocks: int = 0
    flight_requests: int | None = None
    swap_tokens: int = 0
    admission_steps: int = 1
    admission_together: bool = False
    copy_s_per_byte: float = 0.0
    stores_answers: bool = True


@dataclass(frozen=True, slots=True)
class KvOnLink:
    """Bytes of a request's KV on a link, and the latency of a move between pools."""

    token_bytes: float = 0.0
    window_token_bytes: float = 0.0
    window_tokens: int = 0
    request_bytes: float = 0.0
    latency_s: float = 0.0


@dataclass(frozen=True, slots=True)
class SharedStore:
    """KV that every rank can reach over its network link, and the store's own bandwidth."""

    tokens: int
    bytes_per_s: float


@dataclass(frozen=True, slots=True)
class HostSetup:
    """Cores that do the front end's work, and cores that run tools; none: they run elsewhere.

    A request's front end takes `request_s` of a core and `token_s` for each token of its prompt.
    """

    front_end_cores: int
    tool_cores: int
    request_s: float = 0.0
    token_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Scenario:
    """One pool that does all; a prefill and a decode pool; or a midfill pool between the two.

    `frontend_s` is what lies between the client and the engine's queue, both ways together:
    parsing, tokenizing, routing, streaming back. With `keep_answers` the KV of an answer serves
    the next turn of its session (the chat template gives it back unchanged). Cached blocks are
    forgotten after `idle_limit_s` without use. With `fetch_when_faster` prefix blocks below HBM
    are computed again where that would take less. A prefix of `layers` layers is fetched layer by
    layer, the later ones while the prompt is computed. With `prefetch` a rank fetches for requests
    that wait, as far as HBM has room that nobody misses (`prefetch.py`). Turns with at most
    `midfill_tokens` uncached tokens go to the midfill pool. `acceptance` are the rates of the
    draft positions; how many steps each answer takes with them is drawn from `seed`.
    At most `max_queued` requests wait at a rank that prompts enter (None: any number); with
    `try_others` one that finds no room there goes to another rank of the pool. A chunk of a prompt
    is sent to the decode pool in `send_layers` parts, 0 being whole prompts at their end.
    Without `hosts` tools run elsewhere, and nothing in the front end waits for a core.
    """

    pools: tuple[PoolSetup, ...]
    block_tokens: int = 16
    prefix_caching: bool = True
    keep_answers: bool = True
    router: Router = "least-loaded"
    kv_on_link: KvOnLink = KvOnLink()
    frontend_s: float = 0.0
    retention: Retention = "lru"
    idle_limit_s: float = float("inf")
    store: SharedStore | None = None
    midfill_tokens: int = 0
    fetch_when_faster: bool = False
    layers: int = 1
    prefetch: bool = False
    max_queued: int | None = None
    try_others: bool = True
    send_layers: int = 0
    acceptance: tuple[float, ...] = ()
    hosts: HostSetup | None = None
    seed: int = 1
