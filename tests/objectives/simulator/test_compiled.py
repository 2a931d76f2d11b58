"""The machine code: compiled once, whatever arrays a workload is made of."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numba
import pytest

from objectives.simulator import Scenario, loop, simulate
from objectives.workload.load import OfferedLoad
from tests.objectives.simulator.test_tiers import pool
from tests.objectives.simulator.worlds import workload_of


@pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="nothing is compiled")
def test_read_only_arrays_meet_the_same_machine_code() -> None:
    usual = workload_of([0.0, 1.0], [40, 60], [3, 3], [[0, 1], [0, 1, 2]], 16)
    ids = usual.block_ids.copy()
    ids.flags.writeable = False
    scenario, load = Scenario((pool(),)), OfferedLoad(usual.arrival_s, 0)
    expected = simulate(scenario, usual, load)
    run: Any = loop.run
    compiled = len(run.signatures)
    told = simulate(scenario, replace(usual, block_ids=ids), load)
    assert len(run.signatures) == compiled
    assert (told.requests.finish_s == expected.requests.finish_s).all()
