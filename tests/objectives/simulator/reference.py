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
from dataclasses import dataclass, field

from objectives.cost.step_costs import RankBatch, step_seconds
from objectives.simulator.scenario import PoolSetup, Scenario
from objectives.workload.load import OfferedLoad
from objectives.workload.workload import Workload

STEP_END, TRANSFER_END, KV_ARRIVED, FETCH_END, STAGE_FREE, SEND, ENTRY, WAKE = range(8)


@dataclass(eq=False)
class Request:
    number: int
    arrival_s: float
    input: int
    output: int
    chain: tuple[int, ...]
    session: int
    gap_s: float
    followers: list[Request] = field(default_factory=list)
    phase: str = "expected"
    target: int = 0
    computed: int = 0
    generated: int = 0
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
    host_hit: int = 0
    preemptions: int = 0


@dataclass(eq=False)
class Rank:
    setup: PoolSetup
    replica: Replica
    seats: list[Request] = field(default_factory=list)
    queue: deque[Request] = field(default_factory=deque)
    outstanding: int = 0
    used: int = 0
    references: dict[int, int] = field(default_factory=dict)  # cached block -> requests on it
    idle: OrderedDict[int, None] = field(default_factory=OrderedDict)  # least recent first
    host: OrderedDict[int, None] = field(default_factory=OrderedDict)
    host_link_free_s: float = 0.0


@dataclass(eq=False)
class Replica:
    number: int
    setup: PoolSetup
    entry: bool
    ranks: list[Rank] = field(default_factory=list)
    flights: list[object] = field(default_factory=list)
    stage_free_s: list[float] = field(default_factory=list)
    wake_pending: bool = False


@dataclass(eq=False)
class Transfer:
    request: Request
    source: Rank
    target: Rank
    remaining: float
    rate: float = 0.0


class ReferenceSimulator:
    """Serves a workload step by step; the answers are in `requests`."""

    def __init__(self, scenario: Scenario, workload: Workload, load: OfferedLoad) -> None:
        self.scenario = scenario
        self.sharing = scenario.prefix_caching and workload.block_tokens > 0
        self.slot_tokens = workload.block_tokens if self.sharing else 1
        self.slot_blocks = math.ceil(self.slot_tokens / scenario.block_tokens)
        self.concurrency = load.concurrency
        self.now_s = 0.0
        self.serial = 0
        self.turn = self.decode_turn = 0
        self.events: list[tuple[float, int, int, int, Callable[[], None]]] = []
        self.transfers: list[Transfer] = []
        self.transfers_updated_s = 0.0
        self.transfer_version = 0
        self.pools: list[list[Replica]] = []
        for place, setup in enumerate(scenario.pools):
            first = sum(len(pool) for pool in self.pools)
            self.pools.append(self._pool(setup, first, place == 0))
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
            )
            for i in range(len(workload))
        ]
        self.coming: deque[Request] = deque()
        for request, parent in zip(self.requests, workload.parent.tolist(), strict=True):
            waits_in = self.coming if parent < 0 else self.requests[parent].followers
            waits_in.append(request)
        self.turns_left = Counter(request.session for request in self.requests)

    def _pool(self, setup: PoolSetup, first: int, entry: bool) -> list[Replica]:
        replicas = []
        for number in range(first, first + setup.replicas):
            replica = Replica(number, setup, entry, stage_free_s=[0.0] * setup.costs.stages)
            replica.ranks = [Rank(setup, replica) for _ in range(setup.ranks)]
            replicas.append(replica)
        return replicas

    # the clock

    def run(self) -> None:
        if self.concurrency:
            for _ in range(min(self.concurrency, len(self.coming))):
                self.at(0.0, SEND, -1, self.send_next)
        else:
            for root in self.coming:
                self.at(root.arrival_s, SEND, -1, self.send_next)
        while self.events:
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

    def send_next(self) -> None:
        if self.coming:
            self.send(self.coming.popleft())

    def send(self, request: Request) -> None:
        request.arrival_s = self.now_s
        if not self.can_ever_fit(request):
            request.phase = "rejected"
            self.end_turn(request)
        elif self.scenario.frontend_s == 0:
            self.enter(request)
        else:
            entry_s = self.now_s + self.scenario.frontend_s
            self.at(entry_s, ENTRY, request.number, lambda: self.enter(request))

    def end_turn(self, request: Request) -> None:
        for follower in request.followers:
            self.at(
                self.now_s + follower.gap_s,
                SEND,
                follower.number,
                lambda follower=follower: self.send(follower),  # type: ignore[misc]
            )
        self.turns_left[request.session] -= 1
        if self.turns_left[request.session] == 0 and self.concurrency:
            self.at(self.now_s, SEND, -1, self.send_next)

    def enter(self, request: Request) -> None:
        rank = self.route(self.pools[0], request)
        request.phase, request.target = "waiting", request.input
        rank.outstanding += 1
        rank.queue.append(request)
        self.wake(rank.replica)

    def can_ever_fit(self, request: Request) -> bool:
        for place, setup in enumerate(self.scenario.pools):
            leaves_early = place == 0 and len(self.pools) == 2
            tokens = request.input + (0 if leaves_early else request.output)
            if self.blocks(tokens) + setup.request_blocks > setup.kv_blocks:
                return False
        return True

    def route(self, pool: list[Replica], request: Request) -> Rank:
        if self.scenario.router == "round-robin":
            self.turn += 1
            return least_loaded(pool[(self.turn - 1) % len(pool)].ranks)
        if self.scenario.router == "prefix-affinity":
            ranks = [rank for replica in pool for rank in replica.ranks]
            bound = 1.5 * sum(rank.outstanding for rank in ranks) / len(ranks) + 2
            allowed = [rank for rank in ranks if rank.outstanding <= bound]
            return max(allowed, key=lambda r: (len(self.match(r, request)), -r.outstanding))
        return self.least_loaded_of(pool)

    def route_decode(self) -> Rank:
        if self.scenario.router == "round-robin":
            self.decode_turn += 1
            return least_loaded(self.pools[1][(self.decode_turn - 1) % len(self.pools[1])].ranks)
        return self.least_loaded_of(self.pools[1])

    def least_loaded_of(self, pool: list[Replica]) -> Rank:
        return least_loaded(min(pool, key=lambda r: sum(k.outstanding for k in r.ranks)).ranks)

    # memory

    def blocks(self, tokens: int) -> int:
        return max(0, math.ceil(tokens / self.scenario.block_tokens))

    def available(self, rank: Rank) -> int:
        return rank.setup.kv_blocks - rank.used + len(rank.idle) * self.slot_blocks

    def take(self, rank: Rank, blocks: int) -> None:
        while rank.used + blocks > rank.setup.kv_blocks:
            block, _ = rank.idle.popitem(last=False)
            del rank.references[block]
            rank.used -= self.slot_blocks
            self.offload(rank, block)
        rank.used += blocks

    def offload(self, rank: Rank, block: int) -> None:
        room = rank.setup.host_tokens // self.slot_tokens
        if room == 0:
            return
        if block not in rank.host and len(rank.host) == room:
            rank.host.popitem(last=False)
        rank.host[block] = None
        rank.host.move_to_end(block)

    def match(self, rank: Rank, request: Request) -> tuple[int, ...]:
        found = []
        if rank.replica.entry and self.sharing:
            for block in request.chain:
                if block not in rank.references and block not in rank.host:
                    break
                found.append(block)
        return tuple(found)

    def pin(self, rank: Rank, blocks: tuple[int, ...]) -> None:
        for block in blocks:
            if block in rank.references:
                rank.references[block] += 1
                rank.idle.pop(block, None)
            else:
                rank.host.move_to_end(block)
        for block in blocks:
            if block not in rank.references:
                self.take(rank, self.slot_blocks)
                rank.references[block] = 1

    def share_prompt(self, rank: Rank, request: Request) -> None:
        if not (rank.replica.entry and self.sharing):
            return
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

    def release(self, rank: Rank, request: Request, shared: int, private: int) -> None:
        rank.used -= private
        for block in reversed(request.chain[:shared]):
            rank.references[block] -= 1
            if rank.references[block] == 0:
                rank.idle[block] = None

    # the scheduler of a replica

    def schedule(self, replica: Replica) -> None:
        replica.wake_pending = False
        stages = replica.setup.costs.stages
        busy = len(replica.flights) == stages or replica.stage_free_s[0] > self.now_s
        if busy:
            return
        flight = object()
        if not self.fill_batch(replica, flight):
            return
        replica.flights.append(flight)
        time_s = self.now_s
        for stage, seconds in enumerate(self.stage_seconds(replica, flight)):
            time_s = max(time_s, replica.stage_free_s[stage]) + seconds
            replica.stage_free_s[stage] = time_s
        if stages > 1:
            self.at(
                replica.stage_free_s[0], STAGE_FREE, replica.number, lambda: self.wake(replica)
            )
        self.at(time_s, STEP_END, replica.number, lambda: self.end_step(replica, flight))

    def stage_seconds(self, replica: Replica, flight: object) -> list[float]:
        batches = []
        for rank in replica.ranks:
            mine = [request for request in rank.seats if request.flight is flight]
            decodes = tuple(r.computed + 1 for r in mine if r.phase == "decoding")
            chunks = tuple((r.step_tokens, r.computed) for r in mine if r.phase == "prefilling")
            batches.append(RankBatch(decodes, chunks))
        return step_seconds(replica.setup.costs, batches)

    def fill_batch(self, replica: Replica, flight: object) -> bool:
        budget = replica.setup.step_tokens
        if replica.setup.alternating:
            chunks = [self.choose_prompts(rank, flight, budget) for rank in replica.ranks]
            if any(chunks):
                return True
            return any([self.choose_decodes(rank, flight) for rank in replica.ranks])
        chosen = 0
        for rank in replica.ranks:
            decodes = self.choose_decodes(rank, flight)
            chosen += decodes + self.choose_prompts(rank, flight, budget - decodes)
        return chosen > 0

    def choose_decodes(self, rank: Rank, flight: object) -> int:
        stages = rank.setup.costs.stages
        share = min(rank.setup.step_tokens, math.ceil(len(rank.seats) / stages))
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
        tokens = request.computed + 1 - request.shared * self.slot_tokens
        growth = self.blocks(tokens) + rank.setup.request_blocks - request.private
        while growth > self.available(rank):
            victim = [r for r in rank.seats if self.at_hand(r)][-1]
            self.preempt(rank, victim)
            if victim is request:
                return False
        if growth > 0:
            self.take(rank, growth)
            request.private += growth
        return True

    def preempt(self, rank: Rank, request: Request) -> None:
        self.release(rank, request, request.shared, request.private)
        request.shared = request.private = request.computed = 0
        request.target = request.input + request.generated
        request.preemptions += 1
        request.phase = "waiting"
        rank.seats.remove(request)
        rank.queue.appendleft(request)

    def choose_prompts(self, rank: Rank, flight: object, budget: int) -> int:
        chosen = place = 0
        while budget > 0:
            if place == len(rank.seats) and not self.admit(rank):
                break
            request = rank.seats[place]
            place += 1
            if request.phase == "prefilling" and self.at_hand(request):
                request.flight = flight
                request.step_tokens = min(budget, request.target - request.computed)
                budget -= request.step_tokens
                chosen += 1
        return chosen

    def admit(self, rank: Rank) -> bool:
        if not rank.queue or len(rank.seats) >= rank.setup.seats:
            return False
        request = rank.queue[0]
        found = self.match(rank, request)
        from_host = [block for block in found if block not in rank.references]
        pinned = [block for block in found if block in rank.idle]
        private = self.blocks(request.target - len(found) * self.slot_tokens)
        private += rank.setup.request_blocks
        needed = private + (len(from_host) + len(pinned)) * self.slot_blocks
        if needed > self.available(rank):
            return False
        rank.queue.popleft()
        rank.seats.append(request)
        if request.phase == "handed off":
            self.take(rank, private)
            request.private = private
            self.receive(rank, request)
            return True
        self.pin(rank, found)
        self.take(rank, private)
        request.shared, request.private = len(found), private
        request.computed = min(len(found) * self.slot_tokens, request.target - 1)
        request.phase = "prefilling"
        request.usable_s = self.now_s
        if from_host:
            start_s = max(self.now_s, rank.host_link_free_s)
            per_slot_s = rank.setup.host_s_per_token * self.slot_tokens
            request.usable_s = start_s + len(from_host) * per_slot_s
            rank.host_link_free_s = request.usable_s
            self.at(
                request.usable_s, FETCH_END, rank.replica.number, lambda: self.wake(rank.replica)
            )
        if "admitted" not in request.times:
            request.times["admitted"] = self.now_s
            request.times["fetched"] = request.usable_s
            request.host_hit = min(len(from_host) * self.slot_tokens, request.computed)
            request.hbm_hit = request.computed - request.host_hit
        return True

    # the end of a step

    def end_step(self, replica: Replica, flight: object) -> None:
        for rank in replica.ranks:
            for request in rank.seats:
                if request.flight is flight and request.phase == "decoding":
                    request.flight = None
                    request.computed += 1
                    self.token(request)
        for rank in replica.ranks:
            for request in list(rank.seats):
                if request.flight is flight:
                    self.end_chunk(rank, request)
                if request.phase == "decoding" and request.generated >= request.output:
                    self.finish(rank, request)
            rank.seats = [r for r in rank.seats if r.phase not in ("finished", "handed off")]
        replica.flights.remove(flight)
        self.wake(replica)

    def finish(self, rank: Rank, request: Request) -> None:
        rank.used -= request.private
        request.private = 0
        keeps = self.scenario.keep_answers and rank.replica.entry and self.sharing
        if keeps and request.followers:
            chain = request.followers[0].chain
            filled = min(request.computed // self.slot_tokens, len(chain))
            for block in reversed(chain[request.input // self.slot_tokens : filled]):
                room = rank.used + self.slot_blocks <= rank.setup.kv_blocks
                if room and block not in rank.references:
                    rank.used += self.slot_blocks
                    rank.references[block] = 0
                    rank.idle[block] = None
        self.release(rank, request, request.shared, 0)
        request.phase = "finished"
        request.times["finished"] = self.now_s
        rank.outstanding -= 1
        self.end_turn(request)

    def token(self, request: Request) -> None:
        request.generated += 1
        request.token_times.append(self.now_s)

    def end_chunk(self, rank: Rank, request: Request) -> None:
        request.flight = None
        request.computed += request.step_tokens
        if request.computed < request.target:
            return
        self.share_prompt(rank, request)
        request.times.setdefault("prefilled", self.now_s)
        if len(self.pools) == 2 and rank.replica.entry and request.output > 1:
            request.generated = 1
            self.hand_off(rank, request)
        else:
            request.phase = "decoding"
            self.token(request)

    def hand_off(self, rank: Rank, request: Request) -> None:
        request.phase = "handed off"
        request.source = rank
        request.source_shared, request.source_private = request.shared, request.private
        request.shared = request.private = 0
        target = self.route_decode()
        target.outstanding += 1
        target.queue.append(request)
        self.wake(target.replica)

    # KV between the pools

    def receive(self, rank: Rank, request: Request) -> None:
        assert request.source is not None
        request.phase = "receiving"
        request.usable_s = math.inf
        request.times["decode admitted"] = self.now_s
        self.advance_transfers()
        link = self.scenario.kv_on_link
        windowed = min(request.computed, link.window_tokens) * link.window_token_bytes
        size = request.computed * link.token_bytes + windowed + link.request_bytes
        self.transfers.append(Transfer(request, request.source, rank, size))
        self.share_links()

    def advance_transfers(self) -> None:
        for transfer in self.transfers:
            moved = transfer.rate * (self.now_s - self.transfers_updated_s)
            transfer.remaining = max(0.0, transfer.remaining - moved)
        self.transfers_updated_s = self.now_s

    def share_links(self) -> None:
        self.transfer_version += 1
        for transfer in self.transfers:
            at_source = sum(t.source is transfer.source for t in self.transfers)
            at_target = sum(t.target is transfer.target for t in self.transfers)
            transfer.rate = min(
                transfer.source.setup.link_bytes_per_s / at_source,
                transfer.target.setup.link_bytes_per_s / at_target,
            )
        if self.transfers:
            version = self.transfer_version
            end_s = self.now_s + min(t.remaining / t.rate for t in self.transfers)
            self.at(end_s, TRANSFER_END, 0, lambda: self.end_transfer(version))

    def end_transfer(self, version: int) -> None:
        if version != self.transfer_version:
            return
        self.advance_transfers()
        first = min(self.transfers, key=lambda t: t.remaining / t.rate)
        self.transfers.remove(first)
        request = first.request
        latency_s = self.scenario.kv_on_link.latency_s
        self.at(
            self.now_s + latency_s,
            KV_ARRIVED,
            request.number,
            lambda: self.start_decoding(request),
        )
        self.share_links()
        assert request.source is not None
        self.release(request.source, request, request.source_shared, request.source_private)
        request.source.outstanding -= 1
        self.wake(request.source.replica)

    def start_decoding(self, request: Request) -> None:
        request.phase = "decoding"
        request.usable_s = self.now_s
        request.token_times.append(self.now_s)
        for replica in self.pools[1]:
            if any(request in rank.seats for rank in replica.ranks):
                self.wake(replica)


def least_loaded(ranks: list[Rank]) -> Rank:
    return min(ranks, key=lambda rank: rank.outstanding)
