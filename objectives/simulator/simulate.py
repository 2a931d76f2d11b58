"""From a scenario and an offered load to request records: lays the state out, runs the loop."""

from __future__ import annotations

import numpy as np

from objectives.simulator.layout import initial_state
from objectives.simulator.loop import run
from objectives.simulator.records import SimulationResult
from objectives.simulator.results import result
from objectives.simulator.scenario import Scenario
from objectives.simulator.state import EXPECTED, FINISHED, REJECTED, TURNED_AWAY, Records, State
from objectives.workload.load import OfferedLoad
from objectives.workload.workload import Workload
from spaces.errors import InputError


def simulate(scenario: Scenario, workload: Workload, load: OfferedLoad) -> SimulationResult:
    """Serve every request of `workload` under `load`; the same input gives the same bytes.

    Raises `InputError` where the load asks to skip idle time that is not its own to skip.
    """
    if np.isfinite(load.system_idle_cap_s) and not load.concurrency:
        raise InputError(
            "idle time is skipped only in a closed loop",
            where=workload.name,
            key="system_idle_cap_s",
            value=load.system_idle_cap_s,
            remedy="leave it out, or ask for a concurrency",
        )
    drafts = {pool.costs.verified_tokens - 1 for pool in scenario.pools} - {0}
    assert drafts <= {len(scenario.acceptance)}, "costs and acceptance differ in their drafts"
    state = initial_state(scenario, workload, load)
    while not run(*state):
        state = _with_more_room(state)
    settled = np.isin(state.requests["phase"], (FINISHED, REJECTED, TURNED_AWAY))
    unsent = state.requests["phase"] == EXPECTED
    assert (settled | (unsent & np.isfinite(load.horizon_s))).all(), "a request was lost"
    return result(scenario, workload, state, load)


def _with_more_room(state: State) -> State:
    """The same state with arrays of events and flows twice as long."""
    return state._replace(events=_longer(state.events), flows=_longer(state.flows))


def _longer(records: Records) -> np.recarray:
    return np.concatenate([records, np.empty_like(records)]).view(np.recarray)
