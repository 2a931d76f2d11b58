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

from objectives.simulator import RequestRecords
from tests.conftest import REPOSITORY
from tests.objectives.simulator.audit import audited
from tests.objectives.simulator.worlds import World, worlds

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
@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(worlds(most_requests=10))
def test_every_moment_is_in_order(monkeypatch: pytest.MonkeyPatch, world: World) -> None:
    """Clock, requests, blocks, references and idleness; and Little's law in each pool.

    The requests at a pool, summed over time, are the times that its requests spend there.
    """
    result, audit = audited(world, monkeypatch)
    assert audit.looks > len(world[1])
    at_prompts, at_decode = seconds_inside(world, result.requests)
    *entries, last = audit.request_seconds
    if not entries:
        assert last == pytest.approx(at_prompts + at_decode, rel=1e-9)
    elif world[0].pools[-1].copy_s_per_byte:  # the last part is copied when the first pool is rid
        assert sum(entries) <= at_prompts * (1 + 1e-9)
        assert last == pytest.approx(at_decode, rel=1e-9)
    else:
        assert sum(entries) == pytest.approx(at_prompts, rel=1e-9)
        assert last == pytest.approx(at_decode, rel=1e-9)


def seconds_inside(world: World, records: RequestRecords) -> tuple[float, float]:
    """Seconds that requests spend in the pools that prompts enter, and in the last one.

    What is handed over is in both while its KV waits and moves, or from its admission on where it
    is sent in parts. In one pool it is never counted
    twice, for nothing is handed over there.
    """
    scenario = world[0]
    done = records.finished
    parts_s = (records.queue_s, records.fetch_s, records.prefill_s)
    entered_s = records.arrival_s + records.frontend_s
    prefilled_s = entered_s + sum(parts_s)
    handed = done & (records.output_tokens > 1) & (len(scenario.pools) > 1)
    asked_s = entered_s + records.queue_s if scenario.send_layers else prefilled_s
    left_s = np.where(handed, records.first_token_s - scenario.kv_on_link.latency_s, prefilled_s)
    stays = done if len(scenario.pools) == 1 else handed
    return float((left_s - entered_s)[done].sum()), float(
        (records.finish_s - np.where(handed, asked_s, prefilled_s))[stays].sum()
    )
