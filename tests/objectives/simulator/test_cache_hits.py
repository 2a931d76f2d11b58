"""Prefix hits of recorded prompts: those published of an endless cache, an LRU's of a finite one.

Prompts come one after another, so that what is cached does not hang on how long steps take.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from objectives.simulator import PoolSetup, Scenario, simulate
from objectives.workload import read_trace
from objectives.workload.load import OfferedLoad
from objectives.workload.turns import hit_tokens
from objectives.workload.workload import Workload
from tests.objectives.simulator.worlds import constant_step, workload_of
from tests.objectives.workload.test_published_traces import HITS

CONVERSATION = "mooncake/conversation_trace.rows0-5999.jsonl"


def one_by_one(workload: Workload) -> Workload:
    """Its prompts as requests of their own, each of which gives one token."""
    count = len(workload)
    return replace(
        workload,
        output_tokens=np.ones(count, np.int64),
        session=np.arange(count, dtype=np.int32),
        parent=np.full(count, -1, np.int32),
        gap_s=np.zeros(count),
    )


def simulated_hits(workload: Workload, cache_blocks: int) -> np.ndarray:
    """Hits of each prompt in an HBM of so many prefix blocks; -1 where it does not fit."""
    pool = PoolSetup(
        role="aggregated",
        replicas=1,
        ranks=1,
        seats=1,
        step_tokens=1_000_000,
        alternating=False,
        kv_blocks=cache_blocks,
        request_blocks=0,
        costs=constant_step(1e-3),
    )
    scenario = Scenario((pool,), block_tokens=workload.block_tokens)
    records = simulate(scenario, workload, OfferedLoad(np.zeros(len(workload)), 1)).requests
    return np.where(records.finished, records.hit_tokens, -1)


def brute_force_hits(workload: Workload, cache_blocks: int) -> np.ndarray:
    """The same from a list of blocks in order of use, of a chain the deepest the oldest."""
    cached: OrderedDict[int, None] = OrderedDict()
    hits = []
    for place, tokens in enumerate(workload.input_tokens.tolist()):
        first, end = workload.block_offsets[place : place + 2]
        chain = workload.block_ids[first:end].tolist()
        if -(-(tokens + 1) // workload.block_tokens) > cache_blocks:
            hits.append(-1)
            continue
        found = next((n for n, block in enumerate(chain) if block not in cached), len(chain))
        for block in chain[:found]:
            del cached[block]
        while len(cached) + len(chain) > cache_blocks:
            cached.popitem(last=False)
        for block in reversed(chain):
            cached.pop(block, None)
            cached[block] = None
        # A prompt found whole still has its last token computed, which gives the first one.
        hits.append(min(found * workload.block_tokens, tokens - 1))
    return np.array(hits)


@pytest.mark.parametrize("name", HITS)
def test_an_endless_cache_gives_the_published_hits(name: str, data_dir: Path) -> None:
    workload = one_by_one(read_trace(data_dir / "traces" / name).workload)
    found = simulated_hits(workload, len(workload.block_ids) + 1)
    whole = found == workload.input_tokens - 1  # these had their last token computed again
    told = hit_tokens(workload)
    np.testing.assert_array_equal(np.where(whole, told, found), told)
    assert (int(told.sum()), int(workload.input_tokens.sum())) == HITS[name]


@pytest.mark.parametrize("cache_tokens", [300_000, 1_000_000, 3_000_000, 10_000_000])
def test_a_finite_cache_gives_the_hits_of_an_lru(cache_tokens: int, data_dir: Path) -> None:
    workload = one_by_one(read_trace(data_dir / "traces" / CONVERSATION).workload)
    blocks = cache_tokens // workload.block_tokens
    np.testing.assert_array_equal(
        simulated_hits(workload, blocks), brute_force_hits(workload, blocks)
    )


def published_curves(data: Path) -> dict[str, tuple[float, np.ndarray, np.ndarray]]:
    """By trace: hit share of an endless cache; sizes and LRU hits as shares of their most."""
    path = data / "traces" / "reference" / "kvcache_lab_hit_curves.json"
    curves = {}
    for name, trace in json.loads(path.read_text())["traces"].items():
        summary = trace["summary"]
        ceiling = summary["infiniteHitRate"]
        if "totalMeasuredTokens" in summary:
            endless = ceiling * summary["totalMeasuredTokens"]
        else:
            endless = summary["infiniteHitTokens"]
        points = sorted(
            (int(blocks), lru)
            for blocks, (_, lru, _) in trace["capacity_blocks_to_hit_tokens"].items()
        )
        blocks, hits = np.array(points, float).T
        curves[name] = (ceiling, blocks / summary["uniqueBlocks"], hits / endless)
    return curves


def test_curves_of_hits_rise_to_their_ceiling_as_published_ones_do(data_dir: Path) -> None:
    """The published ones are of longer traces: what they share is their shape.

    They never fall, hardly rise any more once the cache holds three tenths of all blocks, and
    bend: the first tenth of it brings more than the rest.
    """
    curves = published_curves(data_dir)
    workload = one_by_one(read_trace(data_dir / "traces" / CONVERSATION).workload)
    distinct, total = len(np.unique(workload.block_ids)), workload.input_tokens.sum()
    endless = simulated_hits(workload, len(workload.block_ids) + 1).sum()
    sizes = np.array([0.003, 0.01, 0.03, 0.1, 0.3, 0.6])
    hits = [simulated_hits(workload, int(size * distinct)) for size in sizes]
    curves["simulated"] = (
        endless / total,
        sizes,
        np.array([np.maximum(found, 0).sum() / endless for found in hits]),
    )
    for ceiling, size, share in curves.values():
        assert 0.3 < ceiling < 1
        assert (np.diff(share) >= 0).all()
        assert share[-1] <= 1 + 1e-9
        tenth, three_tenths = np.interp([0.1, 0.3], size, share)
        assert three_tenths > 0.85
        assert tenth > 0.5


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 6), st.integers(0, 6)), min_size=1),
    st.integers(2, 30),
)
@settings(max_examples=150)
def test_made_up_chains_give_the_hits_of_an_lru(
    prompts: list[tuple[int, int, int]], cache_blocks: int
) -> None:
    """Prompts of some family's first blocks and own ones behind them."""
    chains = [
        [10 * family + position for position in range(common)]
        + [100 + 10 * place + position for position in range(own)]
        for place, (family, common, own) in enumerate(prompts)
    ]
    ids = {block: n for n, block in enumerate(dict.fromkeys(b for c in chains for b in c))}
    dense = [[ids[block] for block in chain] for chain in chains]
    inputs = [8 * len(chain) for chain in chains]
    workload = workload_of(np.zeros(len(chains)), inputs, [1] * len(chains), dense, 8)
    np.testing.assert_array_equal(
        simulated_hits(workload, cache_blocks), brute_force_hits(workload, cache_blocks)
    )
