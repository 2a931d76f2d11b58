"""The tiers of prefix blocks below HBM as records of the state."""

from __future__ import annotations

import numpy as np

from objectives.simulator.scenario import Scenario
from objectives.simulator.state import LEVELS, NONE, SLOT, TIER, WRITER


def tier_sizes(scenario: Scenario, ranks: np.recarray, blocks: int, slot_tokens: int) -> list[int]:
    """Prefix blocks of each tier there is; notes in `ranks` which tier is whose.

    Host memory and disk of every caching rank come first, the shared store last.
    """
    room: list[int] = []
    for rank in ranks if blocks else ():
        setup = scenario.pools[rank.pool]
        if setup.role == "decode":
            continue
        for name, tokens in (("host_tier", setup.host_tokens), ("ssd_tier", setup.ssd_tokens)):
            if tokens >= slot_tokens:
                rank[name] = len(room)
                room.append(min(tokens // slot_tokens, blocks + 1))
    if blocks and scenario.store is not None and scenario.store.tokens >= slot_tokens:
        room.append(min(scenario.store.tokens // slot_tokens, blocks + 1))
    return room


def tier_rows(count: int) -> np.recarray:
    """So many tiers, all empty: their unused slots are chained from the first one on."""
    tiers = np.zeros(count, TIER).view(np.recarray)
    tiers["oldest"] = tiers["newest"] = NONE
    return tiers


def writer_rows(ranks: np.recarray, store_tier: int) -> np.recarray:
    """Of each rank, what writes to its host memory, its disk and the store."""
    writers = np.zeros(len(ranks) * LEVELS, WRITER).view(np.recarray)
    writers["first_waiting"] = writers["last_waiting"] = writers["first_moving"] = NONE
    writers["tier"][0::LEVELS] = ranks["host_tier"]
    writers["tier"][1::LEVELS] = ranks["ssd_tier"]
    writers["tier"][2::LEVELS] = store_tier
    return writers


def unused_slots(sizes: list[int]) -> np.recarray:
    """Slots [len(sizes), largest size], each row's first ones chained as unused."""
    unused = np.zeros((len(sizes), max(sizes, default=0)), SLOT).view(np.recarray)
    for row, size in enumerate(sizes):
        unused["newer"][row, :size] = np.append(np.arange(1, size), NONE)
    return unused
