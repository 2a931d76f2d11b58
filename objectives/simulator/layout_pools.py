"""Pools, replicas, ranks and links of a scenario as records of the state."""

from __future__ import annotations

import numpy as np

from objectives.simulator.scenario import HostSetup, Scenario
from objectives.simulator.state import FRONT_END, LINK, NONE, POOL, RANK, REPLICA, STATION, TOOL


def pool_rows(scenario: Scenario, sharing: bool, slot_blocks: int) -> np.recarray:
    """The pools; prefixes are shared in blocks that take `slot_blocks` KV blocks each."""
    pools = np.zeros(len(scenario.pools), POOL).view(np.recarray)
    first_replica = 0
    for place, setup in enumerate(scenario.pools):
        pool = pools[place]
        pool.first_replica, pool.replicas = first_replica, setup.replicas
        pool.ranks, pool.stages = setup.ranks, setup.costs.stages
        pool.seats, pool.step_tokens = setup.seats, setup.step_tokens
        pool.alternating = setup.alternating
        pool.admission_steps = setup.admission_steps
        pool.admission_together = setup.admission_together
        pool.hands_off = setup.role in ("prefill", "midfill")
        pool.capacity_blocks, pool.fixed_blocks = setup.kv_blocks, setup.request_blocks
        pool.caching = sharing and setup.role != "decode"
        pool.stores_answers = (
            sharing
            and setup.role == "decode"
            and scenario.store is not None
            and scenario.retention != "lru"
            and setup.stores_answers
        )
        pool.blocks_per_slot = slot_blocks
        pool.watermark_blocks = setup.watermark_blocks
        pool.swap_tokens = setup.swap_tokens
        pool.verified = setup.costs.verified_tokens
        split = setup.costs.split
        pool.micro_batches = split.micro_batches if split else 1
        pool.split_layers = split.layers if split else 0
        pool.flight_requests = setup.flight_requests or 0
        tables = setup.costs.tables
        if tables is not None:
            pool.table_tokens = tables.context_tokens
            pool.several_decodes = tables.several_decodes
            pool.several_chunks = tables.several_chunks
        pool.window = setup.costs.window_tokens
        pool.host_s, pool.request_s = setup.costs.host_s, setup.costs.request_s
        first_replica += setup.replicas
    return pools


def replica_rows(scenario: Scenario) -> np.recarray:
    """The replicas of all pools, pool by pool."""
    replicas = np.zeros(sum(pool.replicas for pool in scenario.pools), REPLICA).view(np.recarray)
    place = first_rank = 0
    for pool_id, setup in enumerate(scenario.pools):
        for _ in range(setup.replicas):
            replicas[place].pool = pool_id
            replicas[place].first_rank = first_rank
            place += 1
            first_rank += setup.ranks
    return replicas


def rank_rows(scenario: Scenario) -> np.recarray:
    """The ranks of all replicas, in their order, and which seats are whose."""
    count = sum(pool.replicas * pool.ranks for pool in scenario.pools)
    ranks = np.zeros(count, RANK).view(np.recarray)
    for name in (
        "queue_head",
        "queue_tail",
        "untried",
        "oldest",
        "newest",
        "host_tier",
        "ssd_tier",
        "match_request",
    ):
        ranks[name] = NONE
    place = replica = first_seat = 0
    for pool_id, setup in enumerate(scenario.pools):
        for _ in range(setup.replicas):
            for _ in range(setup.ranks):
                ranks[place].pool = pool_id
                ranks[place].replica = replica
                ranks[place].seats_start = first_seat
                place += 1
                first_seat += setup.seats
            replica += 1
    return ranks


def link_rows(scenario: Scenario, ranks: np.recarray) -> np.recarray:
    """Network, host and disk link of each rank, then the store's, and ranks' ways of copying."""
    links = np.zeros(4 * len(ranks) + 1, LINK).view(np.recarray)
    token_bytes = scenario.kv_on_link.token_bytes or 1.0
    for place, rank in enumerate(ranks):
        setup = scenario.pools[rank.pool]
        rank.net_link, rank.host_link, rank.ssd_link = range(3 * place, 3 * place + 3)
        links["bytes_per_s"][3 * place : 3 * place + 3] = (
            setup.link_bytes_per_s,
            token_bytes / setup.host_s_per_token if setup.host_s_per_token else np.inf,
            token_bytes / setup.ssd_s_per_token if setup.ssd_s_per_token else np.inf,
        )
        rank.copy_link = 3 * len(ranks) + 1 + place
        copy_s = setup.copy_s_per_byte
        links["bytes_per_s"][rank.copy_link] = 1 / copy_s if copy_s else np.inf
    links["bytes_per_s"][3 * len(ranks)] = scenario.store.bytes_per_s if scenario.store else np.inf
    return links


def station_rows(hosts: HostSetup | None) -> np.recarray:
    """Cores of the hosts for each kind of work; none where that is not done on them."""
    stations = np.zeros(2, STATION).view(np.recarray)
    stations["head"] = stations["tail"] = NONE
    if hosts is not None:
        stations["cores"][[FRONT_END, TOOL]] = hosts.front_end_cores, hosts.tool_cores
    return stations
