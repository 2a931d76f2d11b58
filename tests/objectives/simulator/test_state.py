"""Laws of the simulator's state at every moment of a run, which its answers do not show.

Compiled code cannot be looked into, so these tests interpret the same source, in a process of
their own.
"""

from __future__ import annotations

import os
import subprocess
import sys

import numba
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from objectives.simulator import RequestRecords
from objectives.simulator.records import Seconds
from tests.conftest import REPOSITORY
from tests.objectives.simulator.audit import audited
from tests.objectives.simulator.worlds import World, crowded_worlds, worlds

INTERPRETED = bool(numba.config.DISABLE_JIT)


@pytest.mark.skipif(INTERPRETED, reason="it starts the process that runs the others")
def test_the_laws_of_the_state_hold_where_its_source_is_interpreted() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__]
    told = subprocess.run(
        command,
        cwd=REPOSITORY,
        env=os.environ | {"NUMBA_DISABLE_JIT": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 0, told.stdout
    assert "1 passed" in told.stdout


@pytest.mark.skipif(not INTERPRETED, reason="run by the test above")
@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.one_of(worlds(most_requests=10), crowded_worlds(most_requests=10)))
def test_every_moment_is_in_order(monkeypatch: pytest.MonkeyPatch, world: World) -> None:
    """Clock, requests, blocks, references and idleness; and Little's law in each pool.

    The requests at each pool, summed over time, are the times that its requests spend there.
    """
    result, audit = audited(world, monkeypatch)
    assert audit.looks > len(world[1])
    *entries, last = audit.request_seconds
    for place, found in enumerate(entries):
        least, most = seconds_at_prompts(world, result.requests, place)
        assert least * (1 - 1e-9) <= found <= most * (1 + 1e-9)
    at_decode = seconds_at_decode(world, result.requests)
    assert last == pytest.approx(at_decode, rel=1e-9)


def seconds_at_prompts(world: World, records: RequestRecords, place: int) -> tuple[float, float]:
    """The least and the most seconds that requests spend in a pool that hands them on.

    What is handed over stays while its KV waits and moves. Both are the same but where the decode
    pool copies what has come: that takes a part of the transfer, in which the first pool is rid
    of it, and the records do not tell which.
    """
    scenario = world[0]
    here = records.finished & (records.entry_pool == place)
    handed = here & (records.output_tokens > 1)
    entered_s, prefilled_s = entered_and_prefilled_s(records)
    most_s = np.where(handed, records.first_token_s - scenario.kv_on_link.latency_s, prefilled_s)
    least_s = most_s
    if scenario.pools[-1].copy_s_per_byte:
        least_s = prefilled_s + np.where(handed, records.decode_wait_s, 0.0)
    return float((least_s - entered_s)[here].sum()), float((most_s - entered_s)[here].sum())


def seconds_at_decode(world: World, records: RequestRecords) -> float:
    """Seconds that requests spend in the pool that finishes them.

    What is handed over is there while its KV waits and moves, or from its admission on where it
    is sent in parts. Where one pool does all they are there from the queue on.
    """
    scenario = world[0]
    entered_s, prefilled_s = entered_and_prefilled_s(records)
    asked_s = entered_s + records.queue_s if scenario.send_layers else prefilled_s
    alone = len(scenario.pools) == 1
    here = records.finished & (alone | (records.output_tokens > 1))
    came_s = entered_s if alone else asked_s
    return float((records.finish_s - came_s)[here].sum())


def entered_and_prefilled_s(records: RequestRecords) -> tuple[Seconds, Seconds]:
    """When requests came to the engine's queue, and when their prompts were computed [n]."""
    entered_s = records.arrival_s + records.frontend_s
    return entered_s, entered_s + records.queue_s + records.fetch_s + records.prefill_s
