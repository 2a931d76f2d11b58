"""The simulator once more, as plainly as it can be said: one event for each engine step.

No arrays, no leaps, no compiled code; objects, lists and dictionaries, every step of every
replica in its turn. It is the oracle for the fast simulator and is written from the same rules,
not from the same code.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import takewhile

from objectives.cost.step_costs import RankBatch, step_seconds
from objectives.simulator.flows import NOTHING_BYTES
from objectives.simulator.scenario import PoolSetup, Scenario
from objectives.simulator.speculation import steps_of_answers
from objectives.workload.load import OfferedLoad
from objectives.workload.workload import Workload

STEP_END, FLOW_END, KV_ARRIVED, FIRST_LAYER, HOST_END, TOOL_CALL, SEND, ENTRY, WAKE = range(9)


@dataclass(eq=False)
class Request:
    number: int
    arrival_s: float
    input: int
    output: int
    chain: tuple[int, ...]
    session: int
    gap_s: float
    tool_s: float = 0.0
    tool_wait_s: float = math.nan
    followers: list[Request] = field(default_factory=list)
    phase: str = "expected"
    target: int = 0
    computed: int = 0
    generated: int = 0
    steps_left: int = 0
    pace: Fraction = Fraction(1)  # tokens of a decode step
    part: Fraction = Fraction(0)  # of the token that is not whole yet
    shared: int = 0
    private: int = 0
    flight: object | None = None
    step_tokens: int = 0
    usable_s: float = 0.0
    source: Rank | None = None
    source_shared: int = 0
    source_private: int = 0
    times: dict[str, float] = field(default_factory=dict)
    token_times: list[float] = field(default_factory=list)
    hbm_hit: int = 0
    hits_below: list[int] = field(default_factory=lambda: [0, 0, 0])
    fetches: int = 0
    rests: int = 0
    joined: bool = False  # waits for a prefix that comes for another request
    rank: Rank | None = None
    entered_s: float = 0.0
    tried: bool = False  # to fetch for it while it waited
    ahead: int = 0  # leading blocks kept in HBM meanwhile
    ahead_below: list[int] = field(default_factory=lambda: [0, 0, 0])
    preemptions: int = 0
    decode_rank: Rank | None = None  # asked for a place before the prompt ends
    decode_private: int = 0
    prefix: int = 0
    early: float = 0.0  # bytes of the chunk under way that may be sent
    sent: float = 0.0
    sending: bool = False


@dataclass(eq=False)
class Rank:
    setup: PoolSetup
    replica: Replica
    seats: list[Request] = field(default_factory=list)
    queue: deque[Request] = field(default_factory=deque)
    outstanding: int = 0
    reserved: int = 0  # seats kept for requests whose prompts are computed elsewhere
    used: int = 0
    swapped: int = 0  # tokens of preempted requests in host memory
    fetching_ahead: int = 0  # waiting requests whose prefixes are on their way
    references: dict[int, int] = field(default_factory=dict)  # cached block -> requests on it
    coming: dict[int, Request] = field(default_factory=dict)  # block on its way -> for whom
    idle: OrderedDict[int, float] = field(default_factory=OrderedDict)  # oldest first, since when
    tiers: list[Tier] = field(default_factory=list)  # host memory, disk, shared store
    links: list[Link] = field(default_factory=list)  # of these three; the last is its network's
    to_write: list[list[int]] = field(default_factory=lambda: [[], [], []])
    writes: list[list[int]] = field(default_factory=lambda: [[], [], []])
    copying: Link | None = None  # through memory, of KV between pools


@dataclass(eq=False)
class Replica:
    number: int
    setup: PoolSetup
    entry: bool
    ranks: list[Rank] = field(default_factory=list)
    flights: list[object] = field(default_factory=list)
    stage_free_s: list[float] = field(default_factory=list)
    wake_pending: bool = False
    begun_steps: int = 0  # since it looked at its queues, the step that began with it included


@dataclass(eq=False)
class Tier:
    """Prefix blocks and when each was last used, the oldest first; room 0 means no tier.

    Those being written are not there yet, but take their room.
    """

    room: int
    blocks: OrderedDict[int, float] = field(default_factory=OrderedDict)
    coming: set[int] = field(default_factory=set)


@dataclass(eq=False)
class Station:
    """Cores of the hosts for one kind of work, and what waits for one."""

    cores: int
    busy: int = 0
    worked_s: float = 0.0
    queue: deque[Callable[[], None]] = field(default_factory=deque)


@dataclass(eq=False)
class Link:
    bytes_per_s: float


@dataclass(eq=False)
class Flow:
    purpose: str
    request: Request | None
    links: list[Link]
    remaining: float
    rate: float = 0.0
    rest: float = 0.0
    ended: Callable[[], None] | None = None


class ReferenceSimulator:
    """Serves a workload step by step; the answers are in `requests`."""

    def __init__(self, scenario: Scenario, workload: Workload, load: OfferedLoad) -> None:
        self.scenario = scenario
        self.sharing = scenario.prefix_caching and workload.block_tokens > 0
        self.slot_tokens = workload.block_tokens if self.sharing else 1
        self.slot_blocks = math.ceil(self.slot_tokens / scenario.block_tokens)
        self.concurrency = load.concurrency
        self.horizon_s = load.horizon_s
        self.idle_cap_s = load.system_idle_cap_s
        hosts = scenario.hosts
        self.front_end = Station(hosts.front_end_cores if hosts else 0)
        self.tools = Station(hosts.tool_cores if hosts else 0)
        self.in_flight = 0
        self.last_end_s = 0.0
        self.now_s = 0.0
        self.serial = 0
        self.turn = self.decode_turn = 0
        self.events: list[tuple[float, int, int, int, Callable[[], None]]] = []
        self.flows: list[Flow] = []
        self.flows_updated_s = 0.0
        self.flow_version = 0
        store = scenario.store
        self.token_bytes = scenario.kv_on_link.token_bytes or 1.0
        self.store = Tier(store.tokens // self.slot_tokens if store else 0)
        self.store_link = Link(store.bytes_per_s if store else math.inf)
        self.pools: list[list[Replica]] = []
        for setup in scenario.pools:
            first = sum(len(pool) for pool in self.pools)
            self.pools.append(self._pool(setup, first, setup.role != "decode"))
        offsets = workload.block_offsets
        self.requests = [
            Request(
                i,
                float(load.arrival_s[i]),
                int(workload.input_tokens[i]),
                int(workload.output_tokens[i]),
                tuple(int(b) for b in workload.block_ids[offsets[i] : offsets[i + 1]])
                if self.sharing
                else (),
                int(workload.session[i]),
                float(workload.gap_s[i]),
                float(workload.tool_s[i]),
            )
            for i in range(len(workload))
        ]
        for request, steps in zip(
            self.requests, steps_of_answers(scenario, workload.output_tokens), strict=True
        ):
            request.steps_left = int(steps)
        self.coming: deque[Request] = deque()
        for request, parent in zip(self.requests, workload.parent.tolist(), strict=True):
            waits_in = self.coming if parent < 0 else self.requests[parent].followers
            waits_in.append(request)
        self.turns_left = Counter(request.session for request in self.requests)

    def _pool(self, setup: PoolSetup, first: int, entry: bool) -> list[Replica]:
        replicas = []
        for number in range(first, first + setup.replicas):
            replica = Replica(number, setup, entry, stage_free_s=[0.0] * setup.costs.stages)
            replica.ranks = [self._rank(setup, replica) for _ in range(setup.ranks)]
            replicas.append(replica)
        return replicas

    def _rank(self, setup: PoolSetup, replica: Replica) -> Rank:
        own = (setup.host_tokens, setup.ssd_tokens) if replica.entry else (0, 0)
        times = (setup.host_s_per_token, setup.ssd_s_per_token)
        speeds = [self.token_bytes / time if time else math.inf for time in times]
        return Rank(
            setup,
            replica,
            tiers=[*(Tier(tokens // self.slot_tokens) for tokens in own), self.store],
            links=[Link(speed) for speed in (*speeds, setup.link_bytes_per_s)],
            copying=Link(1 / setup.copy_s_per_byte) if setup.copy_s_per_byte else None,
        )

    # the clock

    def run(self) -> None:
        if self.concurrency:
            for _ in range(min(self.concurrency, len(self.coming))):
                self.at(0.0, SEND, -1, self.send_next)
        else:
            for root in self.coming:
                self.at(root.arrival_s, SEND, -1, self.send_next)
        while self.events:
            self.skip_idle_time()
            self.now_s, *_, happen = heapq.heappop(self.events)
            happen()

    def at(self, time_s: float, priority: int, subject: int, happen: Callable[[], None]) -> None:
        self.serial += 1
        heapq.heappush(self.events, (time_s, priority, subject, self.serial, happen))

    def wake(self, replica: Replica) -> None:
        if not replica.wake_pending:
            replica.wake_pending = True
            self.at(self.now_s, WAKE, replica.number, lambda: self.schedule(replica))

    # requests come, go to a rank, leave

    def skip_idle_time(self) -> None:
        idle = self.in_flight == 0 and not self.flows and not self.front_end.busy + self.tools.busy
        if idle and self.idle_cap_s < math.inf:
            until_s = max(self.now_s, self.last_end_s + self.idle_cap_s)
            ahead_s = self.events[0][0] - until_s
            if ahead_s > 0:
                self.events = [(event[0] - ahead_s, *event[1:]) for event in self.events]

    def send_next(self) -> None:
        if self.coming:
            self.send(self.coming.popleft())

    def send(self, request: Request) -> None:
        if self.now_s > self.horizon_s:
            return
        request.arrival_s = self.now_s
        self.in_flight += 1
        if not self.can_ever_fit(request):
            request.phase = "rejected"
            self.end_turn(request)
        elif self.scenario.hosts is not None:
            hosts = self.scenario.hosts
            work_s = hosts.request_s + hosts.token_s * request.input
            rest_s = max(0.0, self.scenario.frontend_s - work_s)
            self.on_host(
                request,
                work_s,
                self.front_end,
                lambda: self.at(
                    self.now_s + rest_s, ENTRY, request.number, lambda: self.enter(request)
                ),
            )
        elif self.scenario.frontend_s == 0:
            self.enter(request)
        else:
            entry_s = self.now_s + self.scenario.frontend_s
            self.at(entry_s, ENTRY, request.number, lambda: self.enter(request))

    def on_host(
        self, request: Request, work_s: float, station: Station, then: Callable[[], None]
    ) -> None:
        """Hold a core for `work_s`, as soon as one is free for this kind of work."""

        def begin() -> None:
            station.busy += 1
            station.worked_s += work_s
            self.at(self.now_s + work_s, HOST_END, request.number, end)

        def end() -> None:
            station.busy -= 1
            if station.queue:
                station.queue.popleft()()
            then()

        if station.busy < station.cores:
            begin()
        else:
            station.queue.append(begin)

    def call_tool(self, request: Request) -> None:
        asked_s = self.now_s

        def answer() -> None:
            request.tool_wait_s = self.now_s - request.tool_s - asked_s
            self.send(request)

        self.on_host(request, request.tool_s, self.tools, answer)

    def end_turn(self, request: Request) -> None:
        self.in_flight -= 1
        self.last_end_s = self.now_s
        for follower in request.followers:
            self.go_on(follower)
        self.turns_left[request.session] -= 1
        if self.turns_left[request.session] == 0 and self.concurrency:
            self.at(self.now_s, SEND, -1, self.send_next)

    def go_on(self, turn: Request) -> None:
        """A turn is sent after its pause, or when the tool at the end of the pause is done."""
        if self.tools.cores and turn.tool_s > 0:
            call_s = self.now_s + (turn.gap_s - turn.tool_s)
            self.at(call_s, TOOL_CALL, turn.number, lambda: self.call_tool(turn))
        else:
            send_s = self.now_s + turn.gap_s
            self.at(send_s, SEND, turn.number, lambda: self.send(turn))

    def enter(self, request: Request) -> None:
        request.target = request.input
        request.entered_s = self.now_s
        chosen = self.route(request)
        rank = self.with_room(chosen)
        if rank is None:
            request.phase = "turned away"
            self.end_turn(request)
            return
        request.phase = "waiting"
        rank.outstanding += 1
        rank.queue.append(request)
        self.wake(rank.replica)

    def with_room(self, chosen: Rank) -> Rank | None:
        limit = self.scenario.max_queued or math.inf
        if len(chosen.queue) < limit:
            return chosen
        pool = next(pool for pool in self.pools if chosen.replica in pool)
        others = [r for replica in pool for r in replica.ranks if len(r.queue) < limit]
        return least_loaded(others) if others and self.scenario.try_others else None

    def can_ever_fit(self, request: Request) -> bool:
        for place, setup in enumerate(self.scenario.pools):
            leaves_early = place < len(self.pools) - 1
            tokens = request.input + (0 if leaves_early else request.output)
            tokens += setup.costs.verified_tokens - 1
            if self.blocks(tokens) + setup.request_blocks > setup.kv_blocks:
                return False
        return True

    def route(self, request: Request) -> Rank:
        if len(self.pools) == 3:
            rank = self.best_prefix(self.pools[1], request)
            found = len(self.match(rank, request))
            uncached = request.input - found * self.slot_tokens
            if found and uncached <= self.scenario.midfill_tokens:
                return rank
        pool = self.pools[0]
        if self.scenario.router == "round-robin":
            self.turn += 1
            return least_loaded(pool[(self.turn - 1) % len(pool)].ranks)
        if self.scenario.router == "prefix-affinity":
            return self.best_prefix(pool, request)
        return self.least_loaded_of(pool)

    def best_prefix(self, pool: list[Replica], request: Request) -> Rank:
        ranks = [rank for replica in pool for rank in replica.ranks]
        bound = 1.5 * sum(rank.outstanding for rank in ranks) / len(ranks) + 2
        allowed = [rank for rank in ranks if rank.outstanding <= bound]
        return max(allowed, key=lambda r: (len(self.match(r, request)), -r.outstanding))

    def route_decode(self) -> Rank:
        if self.scenario.router == "round-robin":
            self.decode_turn += 1
            return least_loaded(self.pools[-1][(self.decode_turn - 1) % len(self.pools[-1])].ranks)
        return self.least_loaded_of(self.pools[-1])

    def least_loaded_of(self, pool: list[Replica]) -> Rank:
        if self.scenario.router == "shortest-queue":
            return least_loaded(min(pool, key=lambda r: sum(len(k.queue) for k in r.ranks)).ranks)
        return least_loaded(min(pool, key=lambda r: sum(k.outstanding for k in r.ranks)).ranks)

    # memory

    def blocks(self, tokens: int) -> int:
        return max(0, math.ceil(tokens / self.scenario.block_tokens))

    def available(self, rank: Rank) -> int:
        return rank.setup.kv_blocks - rank.used + len(rank.idle) * self.slot_blocks

    def take(self, rank: Rank, blocks: int) -> None:
        while rank.used + blocks > rank.setup.kv_blocks:
            oldest = next(iter(rank.idle))
            self.evict(rank, oldest, keep=self.scenario.retention == "lru")
        self.start_writes(rank)
        rank.used += blocks

    def evict(self, rank: Rank, block: int, keep: bool) -> None:
        remembered = self.in_hbm(rank, block)
        del rank.idle[block]
        del rank.references[block]
        rank.used -= self.slot_blocks
        if keep and remembered:
            self.move_down(rank, block)

    def in_hbm(self, rank: Rank, block: int) -> bool:
        if block not in rank.references:
            return False
        return rank.references[block] > 0 or self.is_fresh(rank.idle[block])

    def is_fresh(self, touched_s: float) -> bool:
        return self.now_s - touched_s <= self.scenario.idle_limit_s

    def has(self, tier: Tier, block: int) -> bool:
        return block in tier.blocks and self.is_fresh(tier.blocks[block])

    def level(self, rank: Rank, block: int) -> int | None:
        found = [level for level, tier in enumerate(rank.tiers) if self.has(tier, block)]
        return found[0] if found else None

    def touch(self, tier: Tier, block: int) -> None:
        tier.blocks[block] = self.now_s
        tier.blocks.move_to_end(block)

    def insert(self, rank: Rank, level: int, block: int) -> int | None:
        """Give a block room in a tier, to be written; returns the block left without."""
        tier = rank.tiers[level]
        if block in tier.blocks:
            self.touch(tier, block)
        if block in tier.blocks or block in tier.coming:
            return None
        pushed_out = None
        if len(tier.blocks) + len(tier.coming) == tier.room:
            if not tier.blocks:
                return block
            gone = next(iter(tier.blocks))
            pushed_out = gone if self.has(tier, gone) else None
            del tier.blocks[gone]
        tier.coming.add(block)
        rank.to_write[level].append(block)
        return pushed_out

    def move_down(self, rank: Rank, block: int | None) -> None:
        for level, tier in enumerate(rank.tiers):
            if tier.room and block is not None:
                block = self.insert(rank, level, block)

    def copy_down(self, rank: Rank, blocks: tuple[int, ...]) -> None:
        for block in reversed(blocks):
            self.move_down(rank, block)
            if self.store.room and block not in self.store.blocks:
                self.insert(rank, 2, block)
        self.start_writes(rank)

    def start_writes(self, rank: Rank) -> None:
        for level in range(3):
            if rank.to_write[level] and not rank.writes[level]:
                self.start_write(rank, level)

    def start_write(self, rank: Rank, level: int) -> None:
        rank.writes[level], rank.to_write[level] = rank.to_write[level], []
        size = len(rank.writes[level]) * self.slot_tokens * self.token_bytes
        links = [rank.links[level]] + [self.store_link] * (level == 2)
        self.start_flow("write", None, links, size, ended=lambda: self.end_write(rank, level))

    def end_write(self, rank: Rank, level: int) -> None:
        tier = rank.tiers[level]
        for block in rank.writes[level]:
            tier.coming.remove(block)
            self.touch(tier, block)
        rank.writes[level] = []
        if rank.to_write[level]:
            self.start_write(rank, level)

    def match(self, rank: Rank, request: Request) -> tuple[int, ...]:
        found = []
        if rank.replica.entry and self.sharing and request.phase != "swapped":
            for block in request.chain:
                if not self.in_hbm(rank, block) and self.level(rank, block) is None:
                    break
                found.append(block)
        if self.scenario.fetch_when_faster:
            lead = list(takewhile(lambda block: self.in_hbm(rank, block), found))
            if len(lead) < len(found) and not self.fetch_pays(rank, request, lead, found):
                return tuple(lead)
        return tuple(found)

    def fetch_pays(self, rank: Rank, request: Request, lead: list[int], found: list[int]) -> bool:
        outside = Counter(self.level(rank, b) for b in found if not self.in_hbm(rank, b))
        fetch_s = 0.0
        for level, blocks in outside.items():
            assert level is not None
            links = [rank.links[level]] + [self.store_link] * (level == 2)
            flows = [sum(link in flow.links for flow in self.flows) for link in links]
            rate = min(
                link.bytes_per_s / (others + 1) for link, others in zip(links, flows, strict=True)
            )
            fetch_s = max(fetch_s, blocks * self.slot_tokens * self.token_bytes / rate)
        alone_s = [self.alone_s(rank, request, len(part)) for part in (found, lead)]
        return fetch_s + alone_s[0] <= alone_s[1]

    def alone_s(self, rank: Rank, request: Request, blocks: int) -> float:
        """Seconds of a prompt behind so many cached blocks if it had the replica to itself."""
        cached = min(blocks * self.slot_tokens, request.target - 1)
        seconds = 0.0
        costs = replace(rank.setup.costs, split=None)  # no pool that prompts enter is split
        while cached < request.target:
            new = min(rank.setup.step_tokens, request.target - cached)
            chunk = RankBatch(chunks=((new, cached),))
            seconds += sum(step_seconds(costs, [chunk]))
            cached += new
        return seconds

    def pin(self, rank: Rank, request: Request, blocks: tuple[int, ...]) -> list[int]:
        """Refer to blocks; returns how many come from each tier."""
        below = [0, 0, 0]
        for block in blocks:
            if self.in_hbm(rank, block):
                rank.references[block] += 1
                rank.idle.pop(block, None)
                continue
            level = self.level(rank, block)
            assert level is not None
            below[level] += 1
            self.touch(rank.tiers[level], block)
            if block in rank.references:
                self.evict(rank, block, keep=False)
        self.take(rank, sum(below) * self.slot_blocks)
        for block in blocks:
            if block not in rank.references:
                rank.references[block] = 1
                rank.coming[block] = request
        return below

    def share_prompt(self, rank: Rank, request: Request) -> None:
        if not (rank.replica.entry and self.sharing):
            return
        before = request.shared
        for block in request.chain[request.shared :]:
            rest = request.computed - (request.shared + 1) * self.slot_tokens
            private = self.blocks(rest) + rank.setup.request_blocks
            growth = private - request.private
            growth += 0 if block in rank.references else self.slot_blocks
            if rank.used + growth > rank.setup.kv_blocks:
                break
            rank.used += growth
            rank.references[block] = rank.references.get(block, 0) + 1
            rank.idle.pop(block, None)
            request.private = private
            request.shared += 1
        if self.scenario.retention == "write-through":
            self.copy_down(rank, request.chain[before : request.shared])

    def release(self, rank: Rank, request: Request, shared: int, private: int) -> None:
        rank.used -= private
        for block in reversed(request.chain[:shared]):
            rank.references[block] -= 1
            if rank.references[block] == 0:
                rank.idle[block] = self.now_s

    # the scheduler of a replica

    def schedule(self, replica: Replica) -> None:
        replica.wake_pending = False
        if len(replica.flights) == replica.setup.costs.stages:
            return
        self.settle_held(replica)
        flight = object()
        look = self.looks(replica)
        chosen = self.fill_batch(replica, flight, look)
        if not chosen and not look:
            look = True
            chosen = self.fill_batch(replica, flight, look)
        if look:
            for rank in replica.ranks:
                self.fetch_ahead(rank)
        self.ask_decode_pool(replica)
        if not chosen:
            return
        chunks = any(r.flight is flight and r.phase == "prefilling" for r in seated(replica))
        replica.begun_steps = (0 if look else replica.begun_steps) + 1
        if chunks and not replica.setup.admission_together:
            replica.begun_steps = replica.setup.admission_steps
        replica.flights.append(flight)
        time_s = self.now_s
        for stage, seconds in enumerate(self.stage_seconds(replica, flight)):
            time_s = max(time_s, replica.stage_free_s[stage]) + seconds
            replica.stage_free_s[stage] = time_s
        layers = self.scenario.send_layers
        if layers > 1 and self.hands_off(replica):
            first_s = self.now_s + (time_s - self.now_s) / layers
            self.at(
                first_s, FIRST_LAYER, replica.number, lambda: self.first_layers(replica, flight)
            )
        self.at(time_s, STEP_END, replica.number, lambda: self.end_step(replica, flight))
        self.wake(replica)

    def hands_off(self, replica: Replica) -> bool:
        return len(self.pools) > 1 and replica.entry

    def ask_decode_pool(self, replica: Replica) -> None:
        if not self.scenario.send_layers or not self.hands_off(replica):
            return
        for rank in replica.ranks:
            for request in rank.seats:
                if request.decode_rank is None and request.output > 1:
                    request.source = rank
                    request.decode_rank = self.route_decode()
                    request.decode_rank.outstanding += 1
                    request.decode_rank.queue.append(request)
                    self.wake(request.decode_rank.replica)

    def settle_held(self, replica: Replica) -> None:
        for rank in replica.ranks:
            for request in list(rank.seats):
                if request.phase == "held" and request.rests == 0:
                    request.usable_s = self.now_s
                    self.end_prompt(rank, request)
                    if request.phase == "decoding" and request.generated >= request.output:
                        self.finish(rank, request)
            rank.seats = [r for r in rank.seats if stays(r, rank)]

    def stage_seconds(self, replica: Replica, flight: object) -> list[float]:
        batches = []
        for rank in replica.ranks:
            mine = [request for request in rank.seats if request.flight is flight]
            decodes = tuple(float(r.computed + 1 + r.part) for r in mine if r.phase == "decoding")
            chunks = tuple((r.step_tokens, r.computed) for r in mine if r.phase == "prefilling")
            batches.append(RankBatch(decodes, chunks))
        return step_seconds(replica.setup.costs, batches)

    def looks(self, replica: Replica) -> bool:
        """Whether the replica looks at its queues before this step."""
        if replica.begun_steps >= replica.setup.admission_steps:
            return True
        if any(not rank.seats for rank in replica.ranks):
            return True
        return replica.setup.admission_together and all(map(self.may_admit, replica.ranks))

    def fill_batch(self, replica: Replica, flight: object, look: bool) -> bool:
        budget = replica.setup.step_tokens
        if replica.setup.alternating:
            # Decoding requests may preempt one another until none is left; then prompts again.
            return (
                self.all_prompts(replica, flight, look)
                or any([self.choose_decodes(rank, flight) for rank in replica.ranks])
                or self.all_prompts(replica, flight, look)
            )
        chosen = 0
        for rank in replica.ranks:
            decodes = self.choose_decodes(rank, flight)
            left = budget - decodes * replica.setup.costs.verified_tokens
            chosen += decodes + self.choose_prompts(rank, flight, left, decodes, look)
        return chosen > 0

    def all_prompts(self, replica: Replica, flight: object, look: bool) -> bool:
        budget = replica.setup.step_tokens
        return any([self.choose_prompts(k, flight, budget, 0, look) for k in replica.ranks])

    def choose_decodes(self, rank: Rank, flight: object) -> int:
        stages = rank.setup.costs.stages
        even = math.ceil(len(rank.seats) / stages)
        most = rank.setup.step_tokens // rank.setup.costs.verified_tokens
        share = min(most, rank.setup.flight_requests or even)
        chosen = 0
        for request in list(rank.seats):
            if chosen == share:
                break
            seated = request in rank.seats  # not preempted meanwhile
            ready = seated and request.phase == "decoding" and self.at_hand(request)
            if ready and self.make_room(rank, request):
                request.flight, request.step_tokens = flight, 1
                chosen += 1
        return chosen

    def at_hand(self, request: Request) -> bool:
        return request.flight is None and request.usable_s <= self.now_s

    def make_room(self, rank: Rank, request: Request) -> bool:
        tokens = request.computed + rank.setup.costs.verified_tokens
        tokens -= request.shared * self.slot_tokens
        growth = self.blocks(tokens) + rank.setup.request_blocks - request.private
        while growth > self.available(rank):
            victim = [r for r in rank.seats if self.at_hand(r) and not r.rests][-1]
            self.preempt(rank, victim)
            if victim is request:
                return False
        if growth > 0:
            self.take(rank, growth)
            request.private += growth
        return True

    def preempt(self, rank: Rank, request: Request) -> None:
        self.release(rank, request, request.shared, request.private)
        request.shared = request.private = 0
        request.preemptions += 1
        room = rank.setup.swap_tokens - rank.swapped
        if request.phase == "decoding" and request.computed <= room:
            request.phase, request.target, request.fetches = "swapped", request.computed, 1
            rank.swapped += request.computed
            self.start_flow("swap out", request, [rank.links[0]], self.kv_bytes(request))
        else:
            request.computed = 0
            request.target = request.input + request.generated
            request.phase = "waiting"
        request.rank = rank
        rank.seats.remove(request)
        rank.queue.appendleft(request)

    def choose_prompts(
        self, rank: Rank, flight: object, budget: int, already: int, look: bool
    ) -> int:
        chosen = place = 0
        most = rank.setup.flight_requests or math.inf
        while budget > 0 and already + chosen < most:
            if place == len(rank.seats):
                if not (look and self.admit(rank)):
                    break
                continue
            request = rank.seats[place]
            place += 1
            if request.phase == "prefilling" and self.at_hand(request):
                request.flight = flight
                request.step_tokens = min(budget, request.target - request.computed)
                budget -= request.step_tokens
                chosen += 1
        return chosen

    def may_admit(self, rank: Rank) -> bool:
        if not rank.queue or len(rank.seats) + rank.reserved >= rank.setup.seats:
            return False
        if rank.queue[0].phase == "swapped" and rank.queue[0].fetches:
            return False
        found = self.match(rank, rank.queue[0])
        outside = sum(not self.in_hbm(rank, block) for block in found)
        pinned = sum(self.in_hbm(rank, b) and rank.references[b] == 0 for b in found)
        private = self.private_blocks(rank, rank.queue[0], found)
        left = self.available(rank) - private - (outside + pinned) * self.slot_blocks
        return left >= (rank.setup.watermark_blocks if rank.seats else 0)

    def private_blocks(self, rank: Rank, request: Request, found: tuple[int, ...]) -> int:
        tokens = request.target - len(found) * self.slot_tokens
        return self.blocks(tokens) + rank.setup.request_blocks

    def admit(self, rank: Rank) -> bool:
        if not self.may_admit(rank):
            return False
        request = rank.queue[0]
        found = self.match(rank, request)
        private = self.private_blocks(rank, request, found)
        rank.queue.popleft()
        if request.decode_rank is rank and "decode admitted" not in request.times:
            self.reserve(rank, request, private)
            return True
        rank.seats.append(request)
        if request.phase == "handed off":
            self.take(rank, private)
            request.private = private
            self.receive(rank, request)
            return True
        if request.phase == "swapped":
            self.take(rank, private)
            request.private, request.phase, request.usable_s = private, "receiving", math.inf
            self.start_flow("swap in", request, [rank.links[0]], self.kv_bytes(request))
            return True
        below = self.pin(rank, request, found)
        request.tried = True
        if request.ahead:
            self.let_go(rank, request)
        self.take(rank, private)
        request.shared, request.private = len(found), private
        request.computed = min(len(found) * self.slot_tokens, request.target - 1)
        request.prefix = request.computed
        request.phase = "prefilling"
        request.rank = rank
        if "admitted" not in request.times:
            request.times["admitted"] = self.now_s
            rest = request.computed
            for level, blocks in enumerate(below):
                blocks += request.ahead_below[level]
                request.hits_below[level] = min(rest, blocks * self.slot_tokens)
                rest -= request.hits_below[level]
            request.hbm_hit = rest
        self.fetch(rank, request, below)
        request.joined = self.waits_for_others(rank, request)
        waits = request.fetches or request.joined
        request.usable_s = math.inf if waits else self.now_s
        if not waits:
            request.times.setdefault("fetched", self.now_s)
        return True

    def waits_for_others(self, rank: Rank, request: Request) -> bool:
        shared = request.chain[: request.shared]
        return any(rank.coming.get(block, request) is not request for block in shared)

    def fetch(self, rank: Rank, request: Request, below: list[int]) -> None:
        request.fetches += sum(blocks > 0 for blocks in below)
        for level, blocks in enumerate(below):
            if blocks:
                links = [rank.links[level]] + [self.store_link] * (level == 2)
                size = blocks * self.slot_tokens * self.token_bytes / self.scenario.layers
                rest = size * (self.scenario.layers - 1)
                request.rests += rest > 0
                self.start_flow("fetch", request, links, size, rest)

    def fetch_ahead(self, rank: Rank) -> None:
        """Fetch for those who wait, each once, as soon as there is room that nobody misses."""
        if not (self.scenario.prefetch and rank.replica.entry and self.sharing):
            return
        for request in rank.queue:
            if request.tried:
                continue
            if rank.fetching_ahead >= rank.setup.seats or not self.has_room(rank):
                return
            request.tried = True
            found = self.match(rank, request)
            if not all(self.in_hbm(rank, block) for block in found):
                request.rank = rank
                rank.fetching_ahead += 1
                self.fetch(rank, request, self.pin_ahead(rank, request, found))
                if not request.fetches:
                    self.let_go(rank, request)

    def has_room(self, rank: Rank) -> bool:
        if self.available(rank) - self.slot_blocks < len(rank.seats):
            return False
        if rank.used + self.slot_blocks <= rank.setup.kv_blocks:
            return True
        return min(rank.idle.values(), default=math.inf) < rank.queue[0].entered_s

    def pin_ahead(self, rank: Rank, request: Request, found: tuple[int, ...]) -> list[int]:
        for block in found:
            if self.in_hbm(rank, block):
                rank.references[block] += 1
                rank.idle.pop(block, None)
            else:
                if block in rank.references:
                    self.evict(rank, block, keep=False)
                level = self.level(rank, block)
                if level is None or not self.has_room(rank):
                    break
                self.touch(rank.tiers[level], block)
                if rank.used + self.slot_blocks > rank.setup.kv_blocks:
                    self.evict(rank, next(iter(rank.idle)), self.scenario.retention == "lru")
                rank.used += self.slot_blocks
                rank.references[block] = 1
                rank.coming[block] = request
                request.ahead_below[level] += 1
            request.ahead += 1
        self.start_writes(rank)
        return request.ahead_below

    def let_go(self, rank: Rank, request: Request) -> None:
        self.release(rank, request, request.ahead, 0)
        request.ahead = 0
        rank.fetching_ahead -= 1

    # the end of a step

    def end_step(self, replica: Replica, flight: object) -> None:
        for rank in replica.ranks:
            for request in rank.seats:
                if request.flight is flight and request.phase == "decoding":
                    request.flight = None
                    request.steps_left -= 1
                    request.part += request.pace
                    request.computed += math.floor(request.part)
                    self.tokens(request, math.floor(request.part))
                    request.part %= 1
        for rank in replica.ranks:
            for request in list(rank.seats):
                if request.flight is flight:
                    self.end_chunk(rank, request)
                if request.phase == "decoding" and request.generated >= request.output:
                    self.finish(rank, request)
            rank.seats = [r for r in rank.seats if stays(r, rank)]
        replica.flights.remove(flight)
        self.wake(replica)

    def finish(self, rank: Rank, request: Request) -> None:
        rank.used -= request.private
        request.private = 0
        request.phase = "finished"
        request.times["finished"] = self.now_s
        self.retain(rank, request)
        rank.outstanding -= 1
        self.end_turn(request)

    def retain(self, rank: Rank, request: Request) -> None:
        """What the session goes on with stays cached, by the plan's retention."""
        retention = self.scenario.retention
        chain, filled = request.chain, request.input
        if request.followers and self.scenario.keep_answers:
            chain, filled = request.followers[0].chain, request.computed
        whole = chain[: filled // self.slot_tokens]
        if not (rank.replica.entry and self.sharing):
            stores = rank.setup.stores_answers and retention != "lru"
            if self.sharing and self.store.room and stores:
                self.copy_down(rank, whole)
            return
        answer = whole[request.input // self.slot_tokens :]
        for block in reversed(answer):
            room = rank.used + self.slot_blocks <= rank.setup.kv_blocks
            if room and block not in rank.references:
                rank.used += self.slot_blocks
                rank.references[block] = 0
                rank.idle[block] = self.now_s
        if retention == "write-through":
            self.copy_down(rank, answer)
        self.release(rank, request, request.shared, 0)
        if retention == "offload-at-turn-end":
            for block in (*reversed(answer), *reversed(request.chain[: request.shared])):
                if rank.references.get(block) == 0:
                    self.evict(rank, block, keep=True)
            self.start_writes(rank)

    def tokens(self, request: Request, count: int) -> None:
        """All tokens of a step reach the client at its end, together."""
        request.generated += count
        request.token_times.append(self.now_s)

    def spread(self, request: Request) -> None:
        """What is left of the answer comes evenly over the steps it takes."""
        lacking = request.output - request.generated
        request.steps_left = min(request.steps_left, lacking)
        request.part = Fraction(0)
        if lacking:
            request.pace = Fraction(lacking, request.steps_left)

    def end_chunk(self, rank: Rank, request: Request) -> None:
        request.flight = None
        request.computed += request.step_tokens
        request.early = 0.0
        if request.decode_rank is not rank:
            self.send_computed(request)
        if request.computed < request.target:
            return
        if request.rests:
            request.phase, request.usable_s = "held", math.inf
        else:
            self.end_prompt(rank, request)

    def end_prompt(self, rank: Rank, request: Request) -> None:
        self.share_prompt(rank, request)
        request.times.setdefault("prefilled", self.now_s)
        if len(self.pools) > 1 and rank.replica.entry and request.output > 1:
            request.generated = 1
            self.spread(request)
            self.hand_off(rank, request)
        else:
            request.phase = "decoding"
            self.tokens(request, 1)
            self.spread(request)

    def hand_off(self, rank: Rank, request: Request) -> None:
        request.phase = "handed off"
        request.source = rank
        request.source_shared, request.source_private = request.shared, request.private
        request.shared = request.private = 0
        if request.decode_rank is not None:
            if "decode admitted" in request.times:
                self.take_place(request)
                self.end_hand_off(request)
            return
        target = self.route_decode()
        target.outstanding += 1
        target.queue.append(request)
        self.wake(target.replica)

    # KV between the pools

    def reserve(self, rank: Rank, request: Request, private: int) -> None:
        self.take(rank, private)
        request.decode_private = private
        request.times["decode admitted"] = self.now_s
        rank.reserved += 1
        if request.phase == "handed off":
            self.take_place(request)
        self.send_computed(request)

    def take_place(self, request: Request) -> None:
        rank = request.decode_rank
        assert rank is not None
        rank.reserved -= 1
        rank.seats.append(request)
        request.rank, request.private = rank, request.decode_private
        request.phase, request.usable_s = "receiving", math.inf

    def first_layers(self, replica: Replica, flight: object) -> None:
        layers = self.scenario.send_layers
        for request in seated(replica):
            if request.flight is flight and request.phase == "prefilling":
                after = self.bytes_of_first(request, request.computed + request.step_tokens)
                chunk = after - self.bytes_of_first(request, request.computed)
                request.early = chunk * (layers - 1) / layers
                self.send_computed(request)

    def send_computed(self, request: Request) -> None:
        if "decode admitted" not in request.times or request.sending:
            return
        if request.decode_rank is None:
            return
        size = self.bytes_of_first(request, request.computed) + request.early - request.sent
        if request.fetches or request.rests or request.joined:
            size -= self.bytes_of_first(request, request.prefix)
        if size < NOTHING_BYTES:
            return
        assert request.source is not None
        request.sending = True
        request.sent += size
        links = [request.source.links[2], request.decode_rank.links[2]]
        self.start_flow("part", request, links, size, ended=lambda: self.end_part(request))

    def bytes_of_first(self, request: Request, tokens: int) -> float:
        link = self.scenario.kv_on_link
        windowed = max(0, tokens - max(0, request.target - link.window_tokens))
        size = tokens * self.token_bytes + windowed * link.window_token_bytes
        return size + (link.request_bytes if tokens == request.target else 0.0)

    def end_part(self, request: Request) -> None:
        request.sending = False
        self.send_computed(request)
        self.end_hand_off(request)

    def end_hand_off(self, request: Request) -> None:
        if request.phase == "receiving" and not request.sending:
            at_s = self.now_s + self.scenario.kv_on_link.latency_s
            self.at(at_s, KV_ARRIVED, request.number, lambda: self.start_decoding(request))
            self.release_source(request)

    def receive(self, rank: Rank, request: Request) -> None:
        assert request.source is not None
        request.phase = "receiving"
        request.usable_s = math.inf
        request.times["decode admitted"] = self.now_s
        request.rank = rank
        if request.source.copying:
            size = self.kv_bytes(request)
            self.start_flow("copy out", request, [request.source.copying], size)
        else:
            self.send_kv(request)

    def send_kv(self, request: Request) -> None:
        assert request.source is not None and request.rank is not None
        links = [request.source.links[2], request.rank.links[2]]
        self.start_flow("hand-off", request, links, self.kv_bytes(request))

    def kv_has_come(self, request: Request) -> None:
        arrives_s = self.now_s + self.scenario.kv_on_link.latency_s
        self.at(arrives_s, KV_ARRIVED, request.number, lambda: self.start_decoding(request))

    def kv_bytes(self, request: Request) -> float:
        link = self.scenario.kv_on_link
        windowed = min(request.computed, link.window_tokens) * link.window_token_bytes
        return request.computed * self.token_bytes + windowed + link.request_bytes

    def start_flow(
        self,
        purpose: str,
        request: Request | None,
        links: list[Link],
        size: float,
        rest: float = 0.0,
        ended: Callable[[], None] | None = None,
    ) -> None:
        self.advance_flows()
        self.flows.append(Flow(purpose, request, links, size, rest=rest, ended=ended))
        self.share_links()

    def advance_flows(self) -> None:
        elapsed_s = self.now_s - self.flows_updated_s
        for flow in self.flows:
            if elapsed_s > 0:
                flow.remaining -= flow.rate * elapsed_s
            if flow.remaining < NOTHING_BYTES:
                flow.remaining = 0.0
        self.flows_updated_s = self.now_s

    def share_links(self) -> None:
        self.flow_version += 1
        for flow in self.flows:
            flow.rate = min(
                link.bytes_per_s / sum(link in other.links for other in self.flows)
                for link in flow.links
            )
        if self.flows:
            version = self.flow_version
            end_s = self.now_s + min(flow.remaining / flow.rate for flow in self.flows)
            self.at(end_s, FLOW_END, 0, lambda: self.end_flow(version))

    def end_flow(self, version: int) -> None:
        if version != self.flow_version:
            return
        self.advance_flows()
        first = min(self.flows, key=lambda flow: flow.remaining / flow.rate)
        self.flows.remove(first)
        request = first.request
        self.share_links()
        if first.ended is not None:
            first.ended()
        elif first.purpose == "copy out":
            assert request is not None
            self.send_kv(request)
        elif first.purpose == "copy in":
            assert request is not None
            self.kv_has_come(request)
        elif first.purpose == "hand-off":
            assert request is not None and request.rank is not None
            if request.rank.copying:
                size = self.kv_bytes(request)
                self.start_flow("copy in", request, [request.rank.copying], size)
            else:
                self.kv_has_come(request)
            self.release_source(request)
        elif first.purpose == "fetch":
            assert request is not None
            if first.rest:
                self.start_flow("fetch rest", request, first.links, first.rest)
            self.end_fetch(request)
        elif first.purpose == "fetch rest":
            assert request is not None
            request.rests -= 1
            if request.phase == "waiting":
                self.settle_ahead(request)
                return
            self.send_computed(request)
            if request.rests == 0:
                assert request.rank is not None
                if request.phase == "held":
                    self.wake(request.rank.replica)
                self.all_has_come(request.rank, request)
        elif first.purpose in ("swap out", "swap in"):
            assert request is not None
            self.end_swap(request, first.purpose)

    def end_swap(self, request: Request, purpose: str) -> None:
        assert request.rank is not None
        if purpose == "swap out":
            request.fetches = 0
        else:
            request.rank.swapped -= request.computed
            request.phase, request.usable_s = "decoding", self.now_s
        self.wake(request.rank.replica)

    def release_source(self, request: Request) -> None:
        assert request.source is not None
        self.release(request.source, request, request.source_shared, request.source_private)
        request.source.outstanding -= 1
        self.wake(request.source.replica)

    def end_fetch(self, request: Request) -> None:
        request.fetches -= 1
        if request.phase == "waiting":
            self.settle_ahead(request)
        elif request.fetches == 0:
            assert request.rank is not None
            if not request.joined:
                self.has_prefix(request.rank, request)
            if request.rests == 0:
                self.all_has_come(request.rank, request)

    def has_prefix(self, rank: Rank, request: Request) -> None:
        request.usable_s = self.now_s
        request.times.setdefault("fetched", self.now_s)
        self.send_computed(request)
        self.wake(rank.replica)

    def all_has_come(self, rank: Rank, request: Request) -> None:
        rank.coming = {b: bringer for b, bringer in rank.coming.items() if bringer is not request}
        for other in rank.seats:
            if other.joined and not self.waits_for_others(rank, other):
                other.joined = False
                if not other.fetches:
                    self.has_prefix(rank, other)

    def settle_ahead(self, request: Request) -> None:
        if request.fetches + request.rests == 0:
            assert request.rank is not None
            self.all_has_come(request.rank, request)
            self.let_go(request.rank, request)
            self.wake(request.rank.replica)

    def start_decoding(self, request: Request) -> None:
        request.phase = "decoding"
        request.usable_s = self.now_s
        request.token_times.append(self.now_s)
        for replica in self.pools[-1]:
            if any(request in rank.seats for rank in replica.ranks):
                self.wake(replica)


def seated(replica: Replica) -> list[Request]:
    return [request for rank in replica.ranks for request in rank.seats]


def stays(request: Request, rank: Rank) -> bool:
    return request.phase not in ("finished", "handed off") and request.rank is rank


def least_loaded(ranks: list[Rank]) -> Rank:
    return min(ranks, key=lambda rank: rank.outstanding)
