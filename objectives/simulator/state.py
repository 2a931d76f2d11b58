"""The simulator's whole state: flat record arrays that compiled code reads and writes in place.

Names here follow the engine: a *pool* has equal *replicas*; a replica has attention data-parallel
*ranks*, which step together; a rank has *seats* (running requests), a waiting queue, a budget of
KV blocks, and caches of prefix blocks in HBM and in host memory.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from objectives.cost.step_costs import COEFFICIENTS

# Phases of a request, in the order in which they are usually gone through.
# Held ones are computed, but parts of their prefix are still on the way.
EXPECTED, WAITING, PREFILLING, HELD, HANDED_OFF, RECEIVING, DECODING, FINISHED, REJECTED = range(9)
SWAPPED = 9  # preempted while decoding, its KV in host memory
TURNED_AWAY = 10  # from a full queue

# Kinds of event. The number is also the priority among events of equal time: what ends a step
# comes before what may join the next one, and replicas are woken last, when all is known.
STEP_END, FLOW_END, KV_ARRIVED, FIRST_LAYER, HOST_END, TOOL_CALL, SEND, ENTRY, WAKE = range(9)

# Work on the hosts.
FRONT_END, TOOL = range(2)

# Routers.
ROUND_ROBIN, LEAST_LOADED, PREFIX_AFFINITY, SHORTEST_QUEUE = range(4)

# What a flow of KV over links is for.
HAND_OFF, HAND_OFF_PART, FETCH, FETCH_REST, TIER_WRITE, SWAP_OUT, SWAP_IN = range(7)
COPY_OUT, COPY_IN = 7, 8

# What becomes of cached blocks: moved down a tier when evicted, copied down as soon as computed,
# or moved down at the end of each turn.
LRU, WRITE_THROUGH, OFFLOAD = range(3)

# Levels below HBM, from near to far.
HOST, SSD, STORE = range(3)
LEVELS = 3

NONE = -1

# One line of the processor's cache takes most of what a decode step looks at, so it comes first.
REQUEST = np.dtype(
    [
        ("phase", "i4"),
        ("flight", "i4"),  # micro-batch it is in at present, or NONE
        ("step_tokens", "i4"),  # its tokens in that micro-batch
        ("computed", "i4"),  # tokens in KV
        ("generated", "i4"),  # tokens given out
        ("output", "i4"),  # tokens to generate
        ("steps_left", "i4"),  # decode steps until its last token; fewer than tokens with drafts
        ("decode_steps", "i4"),  # decode steps it was in
        ("pace_tokens", "i4"),  # decoding, it comes by so many tokens
        ("pace_steps", "i4"),  # in so many steps, evenly;
        ("pace_rest", "i4"),  # of the next token it has this many `pace_steps`-ths
        ("shared_blocks", "i4"),  # leading prefix blocks it refers to in the rank's cache
        ("private_blocks", "i4"),  # KV blocks of its own
        ("rank", "i4"),  # where the request waits or runs
        ("last_token_s", "f8"),
        ("usable_s", "f8"),  # its KV is on the rank from then on
        ("arrival_s", "f8"),  # sent by the client
        ("entered_s", "f8"),  # past the front end, at its rank
        ("admitted_s", "f8"),
        ("fetched_s", "f8"),
        ("prefilled_s", "f8"),
        ("decode_admitted_s", "f8"),
        ("first_token_s", "f8"),
        ("finished_s", "f8"),
        ("gap_s", "f8"),  # pause between the end of the turn before and this one
        ("tool_s", "f8"),  # of it a tool holds a core of the hosts, at its end
        ("asked_s", "f8"),  # since when it waits for one or works on it
        ("tool_wait_s", "f8"),  # how long its tool waited for a core
        ("early_bytes", "f8"),  # of the chunk under way: the layers that may be sent,
        ("sent_bytes", "f8"),  # and all that was sent or is on the way
        ("chain_start", "i8"),  # first prefix block in State.chain
        ("chain_length", "i4"),  # prefix blocks of the prompt
        ("input", "i4"),  # prompt tokens
        ("target", "i4"),  # tokens to have in KV before the next token comes out
        ("session", "i4"),
        ("first_child", "i4"),  # turns that wait for the end of this one
        ("next_sibling", "i4"),
        ("next", "i4"),  # the one behind it in the waiting queue
        ("host_work", "i4"),  # what it waits for on a host, or does there
        ("ahead_blocks", "i4"),  # leading prefix blocks kept in HBM while others are fetched ahead
        ("ahead_host", "i4"),  # blocks fetched ahead from host memory,
        ("ahead_ssd", "i4"),
        ("ahead_store", "i4"),
        ("fetches", "i4"),  # flows that still bring the first layer of parts of it,
        ("rests", "i4"),  # and the other layers, while it is computed
        ("joined", "i4"),  # whether it waits for a prefix that is on its way for another request
        ("source_rank", "i4"),  # prefill rank that still holds its KV
        ("source_shared", "i4"),
        ("source_private", "i4"),
        ("decode_rank", "i4"),  # decode rank that is asked before its prompt ends, or NONE
        ("decode_private", "i4"),  # KV blocks set aside there
        ("prefix_tokens", "i4"),  # of its prompt that were cached
        ("sending", "i4"),  # whether a part of its KV is on the way
        ("hbm_hit", "i4"),  # prompt tokens found in HBM at first admission
        ("host_hit", "i4"),  # in host memory
        ("ssd_hit", "i4"),
        ("store_hit", "i4"),  # and in the shared store
        ("preemptions", "i4"),
    ]
)

RANK = np.dtype(
    [
        ("pool", "i8"),
        ("replica", "i8"),
        ("seats_start", "i8"),  # its first place in State.seats
        ("running", "i8"),
        ("queue_head", "i8"),
        ("queue_tail", "i8"),
        ("waiting", "i8"),
        ("reserved", "i8"),  # seats kept for requests whose prompts are still computed elsewhere
        ("outstanding", "i8"),  # requests routed to it and not yet gone
        ("swapped_tokens", "i8"),  # KV of preempted requests in host memory
        ("used_blocks", "i8"),  # cached blocks included
        ("peak_blocks", "i8"),
        ("slot_free", "i8"),  # first unused cache slot
        ("idle_slots", "i8"),  # cached blocks no request refers to
        ("oldest", "i8"),  # least recently used idle slot
        ("newest", "i8"),
        ("host_tier", "i8"),  # in State.tiers, or NONE
        ("ssd_tier", "i8"),
        ("net_link", "i8"),  # in State.links: to other pools and the store,
        ("host_link", "i8"),  # to host memory,
        ("ssd_link", "i8"),  # to the local disk,
        ("copy_link", "i8"),  # and through memory, where KV is staged and converted
        ("untried", "i8"),  # first waiting request that nothing was fetched ahead for yet, or NONE
        ("fetching_ahead", "i8"),  # waiting requests for which flows are under way
        ("held", "i8"),  # prompts that wait for the last layers of their prefix
        ("match_request", "i8"),  # whose prefix was looked for last,
        ("match_version", "i8"),  # in which state of the caches,
        ("match_found", "i8"),  # and what was found of it
        ("match_below", "i8"),
        ("match_idle", "i8"),
        ("batch_decodes", "i8"),  # what it has in the micro-batch just chosen:
        ("batch_chunks", "i8"),
        ("batch_tokens", "i8"),
        ("batch_pace", "f8"),  # tokens its decoding requests come by in a step,
        ("batch_context", "f8"),  # tokens they look back on,
        ("batch_windowed", "f8"),  # within the window,
        ("batch_growing", "f8"),  # and the pace of those that have not filled it
        ("batch_prior", "i8"),  # cached tokens of its chunks, each rounded up for the tables,
        ("batch_squares", "i8"),  # and the squares of their new tokens
    ]
)

REPLICA = np.dtype(
    [
        ("pool", "i8"),
        ("first_rank", "i8"),
        ("flights", "i8"),  # micro-batches in flight
        ("next_flight", "i8"),
        ("wake_pending", "i8"),
        ("version", "i8"),  # of the planned step end; older events are void
        ("begun_steps", "i8"),  # steps begun since it looked at its queues, that one included
        ("leap_steps", "i8"),  # steps of the leap under way; 0 when it may not be cut short.
        # In a pipeline: micro-batches that end in it, the last one included
        ("leap_looks", "i8"),  # it looks at its queues before each of them
        ("leap_start_s", "f8"),
        ("leap_first_s", "f8"),  # seconds of its first step
        ("leap_slope_s", "f8"),  # what each further step takes more
        ("batch_requests", "i8"),  # requests of the batch just chosen
        ("parts", "i8"),  # parts that the batch just chosen goes round in
        ("leap_own_s", "f8"),  # of split decode: attention's work in the leap's first step,
        ("leap_own_slope_s", "f8"),  # what each further one has more,
        ("leap_experts_s", "f8"),  # and the experts' work in each
        ("work_s", "f8"),  # work of all pipeline stages, or of attention where decode is split
        ("experts_work_s", "f8"),
        ("busy_s", "f8"),  # time with a step in progress
        ("busy_since_s", "f8"),
        ("steps", "i8"),
        ("kv_short", "i8"),  # whether a request with a free seat waits for KV,
        ("kv_short_steps", "i8"),  # and in how many steps one did
        ("request_steps", "i8"),  # requests summed over steps
        ("prefill_tokens", "i8"),
        ("decode_tokens", "i8"),
        ("decode_request_steps", "i8"),  # decoding requests summed over steps
    ]
)

POOL = np.dtype(
    [
        ("first_replica", "i8"),
        ("replicas", "i8"),
        ("ranks", "i8"),  # attention data-parallel ranks of a replica
        ("stages", "i8"),  # pipeline stages
        ("seats", "i8"),  # max_num_seqs of a rank
        ("step_tokens", "i8"),  # max_num_batched_tokens of a rank
        ("alternating", "i8"),  # prefill and decode never share a step
        ("hands_off", "i8"),  # requests leave at the end of prefill
        ("capacity_blocks", "i8"),  # KV blocks of a rank
        ("swap_tokens", "i8"),  # room for KV of preempted requests in its host memory
        ("fixed_blocks", "i8"),  # blocks every running request needs beside its tokens
        ("blocks_per_slot", "i8"),  # KV blocks of one cached prefix block
        ("caching", "i8"),  # prompts enter here, and its ranks cache prefixes
        ("stores_answers", "i8"),  # it decodes for others and writes sessions to the store
        ("window", "i8"),
        ("watermark_blocks", "i8"),  # blocks an admission leaves free
        ("admission_steps", "i8"),  # steps between two looks at the queues
        ("admission_together", "i8"),  # it also looks when every rank could admit a request
        ("verified", "i8"),  # tokens a decoding request has in a step: the next and its drafts
        ("micro_batches", "i8"),  # most parts of a batch between attention and experts, else 1
        ("split_layers", "i8"),  # layers with experts in another pool; 0: decode is not split
        ("flight_requests", "i8"),  # most requests of a rank in a micro-batch; 0: an even share
        ("table_tokens", "i8"),  # context step of the attention tables; 0: no tables
        ("several_decodes", "f8"),
        ("several_chunks", "f8"),
        ("host_s", "f8"),
        ("request_s", "f8"),
    ]
)

# In a tier `references` is 1 as long as the block is being written.
SLOT = np.dtype(
    [
        ("block", "i4"),
        ("references", "i4"),
        ("older", "i4"),
        ("newer", "i4"),
        ("touched_s", "f8"),
        ("bringer", "i8"),  # request for which it is on its way into HBM, or NONE; not of tiers
    ]
)

# What a rank writes to one of its tiers: blocks that wait and blocks on their way, each of them a
# chain of slots through `newer`.
WRITER = np.dtype(
    [
        ("tier", "i8"),
        ("first_waiting", "i8"),
        ("last_waiting", "i8"),
        ("waiting", "i8"),
        ("first_moving", "i8"),
        ("written_bytes", "f8"),
    ]
)

TIER = np.dtype([("free", "i8"), ("oldest", "i8"), ("newest", "i8")])

LINK = np.dtype([("bytes_per_s", "f8"), ("flows", "i8"), ("moved_bytes", "f8")])

# Cores for one kind of work on the hosts, and the requests that wait for one, chained by `next`.
STATION = np.dtype(
    [("cores", "i8"), ("busy", "i8"), ("worked_s", "f8"), ("head", "i8"), ("tail", "i8")]
)

EVENT = np.dtype(
    [("time_s", "f8"), ("priority", "i8"), ("serial", "i8"), ("subject", "i8"), ("detail", "i8")]
)

FLOW = np.dtype(
    [
        ("purpose", "i8"),
        ("request", "i8"),
        ("one_link", "i8"),
        ("other_link", "i8"),  # or NONE
        ("rest_bytes", "f8"),  # that follow on the same way
        ("remaining_bytes", "f8"),
        ("bytes_per_s", "f8"),
    ]
)

CLOCK = np.dtype(
    [
        ("now_s", "f8"),
        ("serial", "i8"),
        ("events", "i8"),  # length of the heap
        ("event_margin", "i8"),  # most events that one event can bring about,
        ("flow_margin", "i8"),  # and most flows
        ("next_root", "i8"),  # first turn of the session that comes next
        ("closed_loop", "i8"),  # sessions kept alive; 0 in an open loop
        ("horizon_s", "f8"),  # nothing is sent after it
        ("idle_cap_s", "f8"),  # the clock skips on when nothing has been in flight for so long
        ("in_flight", "i8"),  # requests sent and not ended
        ("last_end_s", "f8"),
        ("router", "i8"),
        ("turn", "i8"),  # of the round-robin router
        ("decode_turn", "i8"),
        ("frontend_s", "f8"),  # between the client and the engine's queue
        ("host_request_s", "f8"),  # of a core for a request's front end,
        ("host_token_s", "f8"),  # and for each token of its prompt
        ("block_tokens", "i8"),  # tokens of a KV block
        ("slot_tokens", "i8"),  # tokens of a prefix block
        ("keep_answers", "i8"),  # answers are cached for the next turn
        ("retention", "i8"),
        ("idle_limit_s", "f8"),  # cached blocks are forgotten after so long without use
        ("midfill_tokens", "i8"),  # most uncached tokens of a turn for the midfill pool
        ("fetch_when_faster", "i8"),  # blocks below HBM are computed again where that takes less
        ("layers", "i8"),  # fetched one after the other while the prompt is computed; 1: together
        ("prefetch", "i8"),  # prefixes are fetched ahead for requests that wait
        ("cache_version", "i8"),  # counts changes of what the caches hold
        ("store_tier", "i8"),  # in State.tiers, or NONE
        ("store_link", "i8"),
        ("flows", "i8"),
        ("queue_limit", "i8"),  # most requests waiting at a rank that prompts enter; 0: no limit
        ("try_others", "i8"),  # the router looks for room at other ranks of the pool
        ("send_layers", "i8"),  # parts in which a chunk is sent; 0: whole prompts at their end
        ("flow_end_s", "f8"),  # of the first flow to end
        ("flows_updated_s", "f8"),
        ("transfer_latency_s", "f8"),
        ("token_bytes", "f8"),  # of a request's KV on the link: each token,
        ("window_token_bytes", "f8"),  # each token within the window,
        ("fixed_bytes", "f8"),  # and what every request has
        ("window", "i8"),
        ("handed_off_bytes", "f8"),
        ("gap_seconds", "f8"),  # sum of all inter-token gaps
    ]
)

# Inter-token gaps are counted in logarithmic bins: 0.9 % wide, from 10 microseconds.
GAP_BINS, GAP_MIN_S, GAP_MAX_S = 2048, 1e-5, 1e3

Records = npt.NDArray[np.void]
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class State(NamedTuple):
    """All arrays of one simulation. Costs carry a leading axis over pools and are padded."""

    clock: Records  # [1]
    requests: Records
    ranks: Records
    replicas: Records
    pools: Records
    seats: Ints
    chain: npt.NDArray[np.int32]
    roots: Ints  # first turns, in order of arrival
    turns_left: Ints  # [sessions] turns that have not ended
    slot_of: npt.NDArray[np.int32]  # [ranks, prefix blocks] -> slot of the rank, or NONE
    slots: Records  # [ranks, slots]
    tiers: Records
    tier_slot_of: npt.NDArray[np.int32]  # [tiers, prefix blocks]
    tier_slots: Records  # [tiers, slots]
    writers: Records  # [ranks x levels]
    stations: Records  # [kinds of work] of the hosts; without cores that work is not done there
    links: Records
    flows: Records
    events: Records
    stage_free_s: Floats  # [replicas, stages]
    flight_ids: Ints  # [replicas, stages] micro-batches in a pipeline, the first to end first,
    flight_end_s: Floats  # when they leave it;
    flight_requests: Ints  # of a leap: their requests,
    flight_s: Floats  # [replicas, stages, stages] what each takes in each stage,
    flight_slope_s: Floats  # and what each further step takes more
    rolling_s: Floats  # [3, stages] scratch of `pipeline.py`: times as they go round,
    rolled_s: Floats  # [2, stages] those of the round before,
    leads_s: Floats  # [2, stages, stages] which one binds by how much, now and a round ago,
    turned: Ints  # [stages] and an order of micro-batches
    gaps: Ints  # [GAP_BINS]
    block_ends: Ints  # [block tokens + 2] scratch: requests by the tokens their blocks still take
    batches: Ints  # [pools, requests] steps with so many requests in them
    grid: Ints  # [pools, columns]
    token_s: Floats  # [pools, stages, columns]
    expert_s: Floats
    graph_tokens: Ints  # [pools, seats + 1]
    coefficients: Floats  # [pools, stages, len(COEFFICIENTS)]
    decode_table_s: Floats  # [pools, requests, contexts]
    mixed_table_s: Floats  # the same in steps with chunks
    prefill_table_s: Floats  # [pools, contexts, new tokens]
    line_s: Floats  # [pools, columns], of split decode
    exchange_s: Floats


(
    EAGER_S,
    LAUNCH_S,
    DECODE_BASE_S,
    DECODE_REQUEST_S,
    DECODE_TOKEN_S,
    DECODE_WINDOW_TOKEN_S,
    PREFILL_BASE_S,
    CHUNK_TOKEN_S,
    PAIR_S,
    WINDOW_PAIR_S,
    READ_S,
) = range(len(COEFFICIENTS))
